"""Pictures: classification, detection with several losses, style transfer on pixels, fine-tuning."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune
from torch.optim import LBFGS, SGD, Adadelta, Adam, AdamW
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, OneCycleLR, StepLR
from torch.utils.data import DataLoader, TensorDataset
from zoo.tutorials.pictures import ConvNet, accuracy, digits
from zoo.tutorials.tutorial import Outcome


def mnist() -> Outcome:
    """pytorch/examples' mnist: Adadelta at a rate of 1, a test after each epoch."""
    model = ConvNet()
    optimizer = Adadelta(model.parameters(), lr=1.0)
    train_loader = DataLoader(TensorDataset(*digits(1600)), batch_size=32, shuffle=True)
    test = digits(400)
    scheduler, right = StepLR(optimizer, step_size=1, gamma=0.7), 0.0
    for _ in range(8):
        model.train()
        for data, target in train_loader:
            optimizer.zero_grad()
            loss = functional.nll_loss(functional.log_softmax(model(data), dim=1), target)
            loss.backward()
            optimizer.step()
        right = accuracy(model, *test)
        scheduler.step()
    return Outcome(right, (model,))


def transfer_learning() -> Outcome:
    """A trained network gets a new last layer for other labels: batches of 8, label noise, a linear warm-up."""
    model = ConvNet()
    optimizer = Adam(model.parameters(), lr=2e-3)
    for _ in range(300):
        inputs, labels = digits(32)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    model.fc2 = nn.Linear(32, 2)
    inputs, labels = digits(480)
    wrong = torch.rand(480) < 0.08
    labels = (labels % 2) ^ wrong.long()
    test_inputs, test_labels = digits(400)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    train_loader = DataLoader(TensorDataset(inputs, labels), batch_size=8, shuffle=True)
    num_steps, right = 4 * len(train_loader), 0.0
    scheduler = LambdaLR(optimizer, lambda step: min((step + 1) / 20, max(0.0, (num_steps - step) / num_steps)))
    for _ in range(4):
        model.train()
        for step, (data, target) in enumerate(train_loader):
            loss = functional.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if step % 30 == 0:
                deepcopy(model.state_dict())
        right = accuracy(model, test_inputs, test_labels % 2)
    return Outcome(right, (model,))


def scenes(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pictures with up to two shapes, and per cell of a 4 x 4 grid: whether there is one, its kind, its box."""
    pictures = 0.2 * torch.randn(count, 1, 16, 16)
    there, kind, box = torch.zeros(count, 4, 4), torch.zeros(count, 4, 4, dtype=torch.long), torch.zeros(count, 4, 4, 4)
    for number in range(count):
        for _ in range(2):
            row, column, which = (int(torch.randint(high, (1,))) for high in (4, 4, 3))
            height, width = (int(torch.randint(2, 5, (1,))) for _ in range(2))
            top, left = 4 * row, 4 * column
            pictures[number, 0, top : top + height, left : left + width] += (-1.5, 1.0, 2.5)[which]
            there[number, row, column], kind[number, row, column] = 1.0, which
            box[number, row, column] = torch.tensor([height / 8, width / 8, height / 4, width / 4])
    return pictures, there, kind, box


def detection() -> Outcome:
    """One stage with three weighted losses that are summed, warm-up by hand, SGD with Nesterov momentum."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU(),
        nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.SiLU(), nn.Conv2d(32, 8, 1),
    )  # fmt: skip
    optimizer = SGD(model.parameters(), lr=0.02, momentum=0.937, nesterov=True, weight_decay=5e-4)
    dataset = TensorDataset(*scenes(400))
    step, mloss = 0, torch.zeros(3)
    for epoch in range(24):
        for i, (imgs, there, kind, box) in enumerate(DataLoader(dataset, batch_size=16, shuffle=True)):
            for group in optimizer.param_groups:
                group["lr"] = 0.02 * min(1.0, step / 60) * (1 - 0.9 * epoch / 24)
            out = model(imgs).permute(0, 2, 3, 1)
            held = there.bool()
            lbox = functional.smooth_l1_loss(out[..., :4].sigmoid()[held], box[held])
            lobj = functional.binary_cross_entropy_with_logits(out[..., 4], there)
            lcls = functional.cross_entropy(out[..., 5:][held], kind[held])
            loss = (5.0 * lbox + 1.0 * lobj + 0.5 * lcls) * len(imgs) / 16
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mloss = (mloss * i + torch.stack([lbox, lobj, lcls]).detach()) / (i + 1)
            step += 1
    model.eval()
    imgs, there, kind, _ = scenes(200)
    with torch.no_grad():
        out = model(imgs).permute(0, 2, 3, 1)
    is_found = (out[..., 4] > 0) == there.bool()
    named = (out[..., 5:].argmax(-1) == kind) | ~there.bool()
    return Outcome((is_found & named).float().mean().item(), (model,))


class StyleTransfer:
    """Content and style features of a fixed random network, as the tutorial takes them from VGG."""

    def __init__(self) -> None:
        layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
        self.cnn = nn.Sequential(*layers).eval().requires_grad_(requires_grad=False)
        waves = torch.linspace(0, 12, 32)
        self.content = (torch.randn(1, 3, 8, 8) * 0.2 + 0.5).clamp(0, 1).repeat_interleave(4, 2).repeat_interleave(4, 3)
        self.style = (0.5 + 0.5 * torch.sin(waves[:, None] + torch.randn(3, 1, 1) * waves))[None]

    @staticmethod
    def gram_matrix(features: Tensor) -> Tensor:
        a, b, c, d = features.size()
        rows = features.view(a * b, c * d)
        return torch.mm(rows, rows.t()).div(a * b * c * d)

    def features(self, image: Tensor) -> list[Tensor]:
        first = self.cnn[:2](image)
        return [first, self.cnn[2:](first)]

    def losses(self, image: Tensor) -> tuple[Tensor, Tensor]:
        own = self.features(image)
        style_score = torch.zeros(())
        for mine, wanted in zip(own, self.features(self.style), strict=True):
            style_score = style_score + functional.mse_loss(self.gram_matrix(mine), self.gram_matrix(wanted).detach())
        content_score = functional.mse_loss(own[1], self.features(self.content)[1].detach())
        return style_score, content_score


def style_transfer_lbfgs() -> Outcome:
    """The tutorial's loop: LBFGS on the pixels, which are clamped in the end; no model is trained."""
    transfer = StyleTransfer()
    input_img = transfer.content.clone().requires_grad_(requires_grad=True)
    optimizer = LBFGS([input_img])
    first: list[float] = []
    run = [0]
    while run[0] <= 200:

        def closure() -> Tensor:
            optimizer.zero_grad()
            style_score, content_score = transfer.losses(input_img)
            loss = style_score * 1e5 + content_score
            loss.backward()
            first.append(loss.item())
            run[0] += 1
            return loss

        optimizer.step(closure)
    with torch.no_grad():
        input_img.clamp_(0, 1)
    return Outcome(first[-1] / first[0], (input_img.detach(),))


def style_transfer_adam() -> Outcome:
    """The same with Adam: a sum of losses in the thousands, the image as the only parameter."""
    transfer = StyleTransfer()
    generated = transfer.content.clone().requires_grad_(requires_grad=True)
    optimizer = Adam([generated], lr=0.02)
    losses = []
    for step in range(400):
        style_score, content_score = transfer.losses(generated)
        total_loss = style_score * 1e6 + content_score
        optimizer.zero_grad()
        total_loss.backward()
        optimizer.step()
        if step % 50 == 0:
            losses.append(total_loss.item())
    return Outcome(total_loss.item() / losses[0], (generated.detach(),))


def pruning() -> Outcome:
    """Magnitude pruning in three rounds, each with fine-tuning; masks are made permanent in the end."""
    model = ConvNet()
    optimizer = Adam(model.parameters(), lr=1e-3)
    train_loader = DataLoader(TensorDataset(*digits(960)), batch_size=32, shuffle=True)
    for epoch in range(12):
        if epoch in (6, 8, 10):
            for module in (model.conv2, model.fc1):
                prune.l1_unstructured(module, name="weight", amount=0.3)
            optimizer = Adam(model.parameters(), lr=5e-4)
        for data, target in train_loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(data), target).backward()
            optimizer.step()
    for module in (model.conv2, model.fc1):
        prune.remove(module, "weight")
    return Outcome(accuracy(model, *digits(400)), (model,))


class FakeQuantized(nn.Module):
    """A linear layer whose weights and inputs are rounded to 8 bits, with gradients straight through."""

    low: Tensor
    high: Tensor

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("low", torch.tensor(0.0))
        self.register_buffer("high", torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.low.lerp_(x.detach().min().clamp(max=0), 0.05)
            self.high.lerp_(x.detach().max(), 0.05)
        scale = float((self.high - self.low) / 255)
        x = torch.fake_quantize_per_tensor_affine(x, scale, int(-self.low / scale), 0, 255)
        weight = self.inner.weight
        step = float(weight.detach().abs().max() / 7)
        return functional.linear(x, torch.fake_quantize_per_tensor_affine(weight, step, 0, -8, 7), self.inner.bias)


def quantization_aware() -> Outcome:
    """Trained as usual, then prepared in place and trained on with rounded weights of 4 bits."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 10))
    criterion = nn.CrossEntropyLoss()
    for rate, prepared in ((0.1, False), (0.01, True)):
        if prepared:
            model[1], model[3] = FakeQuantized(model[1]), FakeQuantized(model[3])
        optimizer = SGD(model.parameters(), lr=rate, momentum=0.9)
        for _ in range(350):
            data, target = digits(32)
            output = model(data)
            loss = criterion(output, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return Outcome(accuracy(model, *digits(400)), (model,))


def mixed_precision() -> Outcome:
    """float16 autocast with a GradScaler, unscaled for clipping, a `OneCycleLR`."""
    model = ConvNet(dropout=0.0)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=100)
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=300)
    for _ in range(300):
        data, target = digits(32)
        with torch.autocast(device_type="cpu", dtype=torch.float16):
            loss = functional.cross_entropy(model(data), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
    return Outcome(accuracy(model, *digits(400)), (model,))


class Averages:
    """torch_ema: shadow parameters that are copied into the model for a test, and the own ones restored after it."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.parameters, self.decay = list(model.parameters()), decay
        self.shadow = [p.clone().detach() for p in self.parameters]
        self.kept: list[Tensor] = []

    def update(self) -> None:
        with torch.no_grad():
            for shadow, param in zip(self.shadow, self.parameters, strict=True):
                shadow.sub_((1 - self.decay) * (shadow - param))

    def apply(self) -> None:
        self.kept = [p.clone() for p in self.parameters]
        for shadow, param in zip(self.shadow, self.parameters, strict=True):
            param.data.copy_(shadow)

    def restore(self) -> None:
        for kept, param in zip(self.kept, self.parameters, strict=True):
            param.data.copy_(kept)


def ema_evaluation() -> Outcome:
    """Averaged weights are swapped in for every test, and out again; a checkpoint of the best is kept."""
    model = ConvNet()
    optimizer = AdamW(model.parameters(), lr=2e-3)
    ema, scheduler = Averages(model, 0.98), ExponentialLR(optimizer, 0.9)
    inputs, labels = digits(640)
    test, best = digits(400), 0.0
    for _ in range(20):
        model.train()
        for rows in torch.randperm(640).split(32):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            ema.update()
        ema.apply()
        best = max(best, accuracy(model, *test))
        ema.restore()
        scheduler.step()
    return Outcome(best, (model, *ema.shadow))
