"""Loops that are not one batch, one step: second-order optimizers, inner loops, layers in turn, whole graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.optim import LBFGS, SGD, Adam, AdamW
from torch.optim.lr_scheduler import ReduceLROnPlateau
from zoo.tutorials.pictures import ConvNet, accuracy, digits
from zoo.tutorials.tutorial import Outcome


class Sequence2Value(nn.Module):
    """Of pytorch/examples' time_sequence_prediction, with one cell."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm1, self.linear = nn.LSTMCell(1, 16), nn.Linear(16, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = []
        h_t = c_t = torch.zeros(inputs.size(0), 16, dtype=torch.double)
        for input_t in inputs.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            outputs += [self.linear(h_t)]
        return torch.cat(outputs, dim=1)


def lbfgs_sines() -> Outcome:
    """LBFGS on all data in double precision; each step evaluates its closure up to 20 times."""
    shift = torch.randint(-80, 80, (24, 1))
    data = torch.sin((torch.arange(30) + shift) / 4.0).double()
    inputs, target = data[4:, :-1], data[4:, 1:]
    test_inputs, test_target = data[:4, :-1], data[:4, 1:]
    model = Sequence2Value().double()
    criterion, optimizer = nn.MSELoss(), LBFGS(model.parameters(), lr=0.8)
    test_loss = math.inf
    for _ in range(12):

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = criterion(model(inputs), target)
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            test_loss = criterion(model(test_inputs), test_target).item()
    return Outcome(test_loss, (model,))


def lbfgs_regression() -> Outcome:
    """LBFGS with a strong Wolfe line search and four iterations for each of 150 steps."""
    inputs = torch.rand(200, 4) * 2 - 1
    target = (inputs[:, :1] * 3).sin() + inputs[:, 1:2] * inputs[:, 2:3] + 0.05 * torch.randn(200, 1)
    model = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = LBFGS(model.parameters(), lr=1.0, max_iter=4, history_size=20, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs), target)
        loss.backward()
        return loss

    for _ in range(150):
        optimizer.step(closure)
    return Outcome(functional.mse_loss(model(inputs), target).item(), (model,))


def layer_by_layer() -> Outcome:
    """Greedy training: each layer as an autoencoder with an optimizer of its own, then the whole with labels."""
    inputs, labels = digits(800)
    inputs = inputs.flatten(1)
    sizes, encoders, features = [144, 64, 32], [], inputs
    for size_in, size_out in pairwise(sizes):
        encoder, decoder = nn.Sequential(nn.Linear(size_in, size_out), nn.ReLU()), nn.Linear(size_out, size_in)
        optimizer = Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
        for _ in range(10):
            for rows in torch.randperm(800).split(32):
                noisy = features[rows] + 0.1 * torch.randn_like(features[rows])
                loss = functional.mse_loss(decoder(encoder(noisy)), features[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with torch.no_grad():
            features = encoder(features)
        encoders.append(encoder)
    model = nn.Sequential(nn.Flatten(), *encoders, nn.Linear(32, 10))
    optimizer = Adam(model.parameters(), lr=1e-3)
    for _ in range(10):
        for rows in torch.randperm(800).split(32):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    return Outcome(accuracy(model, *digits(400)), (model,))


def sine_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))


def sine_task() -> tuple[Tensor, Tensor]:
    amplitude, phase = torch.rand(1) * 2 + 0.5, torch.rand(1) * math.pi
    x = torch.rand(20, 1) * 6 - 3
    return x, amplitude * torch.sin(x + phase)


def forward_with(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    x = torch.tanh(functional.linear(x, weights[0], weights[1]))
    x = torch.tanh(functional.linear(x, weights[2], weights[3]))
    return functional.linear(x, weights[4], weights[5])


def maml() -> Outcome:
    """An inner step by torch.autograd.grad, and a meta-loss over four tasks that is backpropagated through it."""
    model = sine_net()
    meta_optimizer = Adam(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(600):
        meta_loss = torch.zeros(())
        for _ in range(4):
            x, y = sine_task()
            inner_loss = functional.mse_loss(forward_with(list(model.parameters()), x[:10]), y[:10])
            grads = torch.autograd.grad(inner_loss, list(model.parameters()), create_graph=True)
            fast_weights = [w - 0.02 * g for w, g in zip(model.parameters(), grads, strict=True)]
            meta_loss = meta_loss + functional.mse_loss(forward_with(fast_weights, x[10:]), y[10:])
        meta_optimizer.zero_grad()
        (meta_loss / 4).backward()
        meta_optimizer.step()
        losses.append(meta_loss.item() / 4)
    return Outcome(sum(losses[-50:]) / 50 / (sum(losses[:20]) / 20), (model,))


def reptile() -> Outcome:
    """Eight inner steps of SGD on a task, then the weights are moved back, a part of the way from where they were."""
    model = sine_net()
    optimizer = SGD(model.parameters(), lr=0.05)

    def adapt(x: Tensor, y: Tensor) -> None:
        for _ in range(8):
            optimizer.zero_grad()
            functional.mse_loss(model(x), y).backward()
            optimizer.step()

    for iteration in range(150):
        weights_before = {name: value.clone() for name, value in model.state_dict().items()}
        adapt(*sine_task())
        weights_after = model.state_dict()
        outerstepsize = 0.3 * (1 - iteration / 150)
        model.load_state_dict(
            {name: old + (weights_after[name] - old) * outerstepsize for name, old in weights_before.items()}
        )
    meta, errors = {name: value.clone() for name, value in model.state_dict().items()}, []
    for _ in range(20):
        model.load_state_dict(meta)
        x, y = sine_task()
        adapt(x[:10], y[:10])
        with torch.no_grad():
            errors.append(functional.mse_loss(model(x[10:]), y[10:]).item())
    model.load_state_dict(meta)
    return Outcome(sum(errors) / 20, (model,))


def heat_equation() -> Outcome:
    """A physics-informed network: second derivatives in the loss, and a plateau scheduler that is given the loss."""
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = Adam(net.parameters(), lr=5e-3)
    scheduler = ReduceLROnPlateau(optimizer, patience=150, factor=0.5)
    for _ in range(800):
        x = torch.rand(64, 1, requires_grad=True)
        t = torch.rand(64, 1, requires_grad=True)
        u = net(torch.cat([x, t], dim=1))
        u_t = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)[0]
        u_x = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
        u_xx = torch.autograd.grad(u_x, x, torch.ones_like(u_x), create_graph=True)[0]
        loss_pde = torch.mean((u_t - 0.1 * u_xx) ** 2)
        start, zero = torch.rand(64, 1), torch.zeros(64, 1)
        loss_ic = torch.mean((net(torch.cat([start, zero], 1)) - torch.sin(math.pi * start)) ** 2)
        edge = torch.cat([torch.cat([zero, start], 1), torch.cat([zero + 1, start], 1)])
        loss = loss_pde + 10 * loss_ic + 10 * torch.mean(net(edge) ** 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step(loss.item())
    with torch.no_grad():
        x, t = torch.rand(500, 1), torch.rand(500, 1)
        exact = torch.sin(math.pi * x) * torch.exp(-0.1 * math.pi**2 * t)
        error = (net(torch.cat([x, t], 1)) - exact).abs().mean().item()
    return Outcome(error, (net,))


class GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gc1, self.gc2 = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        x = functional.relu(adj @ self.gc1(x))
        x = functional.dropout(x, 0.5, training=self.training)
        return functional.log_softmax(adj @ self.gc2(x), dim=1)


def graph_convolution() -> Outcome:
    """The whole graph in each of 300 epochs; train and eval in turns."""
    labels, world = torch.arange(200) % 4, Generator().manual_seed(9)
    adj = (torch.rand(200, 200, generator=world) < torch.where(labels[:, None] == labels, 0.15, 0.01)).float()
    adj = ((adj + adj.T) > 0).float() + torch.eye(200)
    adj = adj / adj.sum(1, keepdim=True)
    features = torch.randn(200, 16, generator=world) + 0.5 * torch.randn(4, 16, generator=world)[labels]
    order = torch.randperm(200)
    idx_train, idx_val, idx_test = order[:60], order[60:100], order[100:]
    model, best = GCN(), 0.0
    optimizer = Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(300):
        model.train()
        optimizer.zero_grad()
        output = model(features, adj)
        loss_train = functional.nll_loss(output[idx_train], labels[idx_train])
        loss_train.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            output = model(features, adj)
        best = max(best, output[idx_val].argmax(1).eq(labels[idx_val]).float().mean().item())
    right = output[idx_test].argmax(1).eq(labels[idx_test]).float().mean().item()
    return Outcome(right, (model,))


def uneven_accumulation() -> Outcome:
    """Steps at `step % 4 == 0`, as in run_clm_no_trainer: the first of each epoch has one micro-batch of four."""
    model = ConvNet()
    optimizer = AdamW(model.parameters(), lr=3e-3)
    inputs, labels = digits(800)
    completed_steps, accumulation = 0, 4
    for _ in range(10):
        batches = torch.randperm(800).split(8)
        for step, rows in enumerate(batches):
            loss = functional.cross_entropy(model(inputs[rows]), labels[rows])
            loss = loss / accumulation
            loss.backward()
            if step % accumulation == 0 or step == len(batches) - 1:
                optimizer.step()
                optimizer.zero_grad()
                completed_steps += 1
    return Outcome(accuracy(model, *digits(400)), (model,))


def polynomial() -> Outcome:
    """PyTorch's first tutorial: losses and gradients in the thousands, four numbers to learn."""
    x = torch.linspace(-math.pi, math.pi, 2000)
    y = torch.sin(x) + 0.1 * torch.randn(2000)
    xx = x.unsqueeze(-1).pow(torch.tensor([1, 2, 3]))
    model, loss_fn = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0, 1)), nn.MSELoss(reduction="sum")
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for _ in range(2000):
        y_pred = model(xx)
        loss = loss_fn(y_pred, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Outcome(loss_fn(model(xx), y).item() / 2000, (model,))


def swa() -> Outcome:
    """torch.optim.swa_utils with batch norm: the averaged model is tested, its statistics are computed again."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(200, 10)
    )
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    swa_model = torch.optim.swa_utils.AveragedModel(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
    swa_scheduler = torch.optim.swa_utils.SWALR(optimizer, anneal_strategy="linear", anneal_epochs=3, swa_lr=0.05)
    inputs, labels = digits(800)
    for epoch in range(20):
        for rows in torch.randperm(800).split(32):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
        if epoch > 12:
            swa_model.update_parameters(model)
            swa_scheduler.step()
        else:
            scheduler.step()
    torch.optim.swa_utils.update_bn(list(inputs.split(64)), swa_model)
    return Outcome(accuracy(swa_model, *digits(400)), (model, swa_model))
