"""Networks of many builds, each trained as its kind is."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, ctc_loss, dropout, log_softmax, relu
from torch.optim import LBFGS, Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR
from zoo.healthy.data import accuracy, classify, dice_of, images, learnt, points

from mlflow_stability.demo.language import LETTERS, lines, next_letter, random_texts, tiny_gpt
from mlflow_stability.demo.training_loop import cosine


def gpt(seed: int) -> None:
    """Warm-up, a cosine, clipping, and a look at unseen text every fifty steps."""
    texts, unseen, dice = random_texts(0), random_texts(1), dice_of(seed)
    model = tiny_gpt()
    optimizer = AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    share = cosine(400)
    schedule = LambdaLR(optimizer, lambda step: share(step + 1))
    for step in range(400):
        loss = next_letter(model, lines(texts, dice, 8))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 49:
            model.eval()
            with torch.no_grad():
                now = next_letter(model, lines(unseen, dice, 32)).item()
            model.train()
    learnt("the loss on unseen text", now, most=1.6)


class Reader(nn.Module):
    def __init__(self, cell: type[nn.RNNBase], layers: int = 1) -> None:
        super().__init__()
        self.letters, self.cell = nn.Embedding(LETTERS, 24), cell(24, 48, layers, batch_first=True)
        self.head = nn.Linear(48, LETTERS)

    def forward(self, given: Tensor) -> Tensor:
        return self.head(self.cell(self.letters(given))[0])


def lstm(seed: int) -> None:
    texts, dice, model = random_texts(0), dice_of(seed), Reader(nn.LSTM, 2)
    optimizer = Adam(model.parameters(), lr=3e-3)
    for _ in range(600):
        loss = next_letter(model, lines(texts, dice, 16))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    learnt("the loss", loss.item(), most=1.6)


class Translator(nn.Module):
    """An encoder and a decoder, normalised after each block, as in the first paper."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(12, width), nn.Embedding(16, width)
        self.body = nn.Transformer(width, 4, 2, 2, 64, 0.1, batch_first=True)
        self.head = nn.Linear(width, 12)

    def forward(self, given: Tensor, so_far: Tensor) -> Tensor:
        ahead = nn.Transformer.generate_square_subsequent_mask(so_far.shape[1])
        first, other = (self.letters(tensor) + self.places(torch.arange(tensor.shape[1])) for tensor in (given, so_far))
        return self.head(self.body(first, other, tgt_mask=ahead))


def translation(seed: int) -> None:
    """A sequence is to be reversed; the rate warms up and falls with the root of the steps."""
    dice, model = dice_of(seed), Translator()
    optimizer = Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-9)
    schedule = LambdaLR(optimizer, lambda step: min((step + 1) / 100, (100 / (step + 1)) ** 0.5))
    for _ in range(500):
        given = torch.randint(2, 12, (32, 6), generator=dice)
        result = torch.cat([torch.ones(32, 1, dtype=torch.long), given.flip(1)], 1)
        scores = model(given, result[:, :-1])
        loss = cross_entropy(scores.flatten(0, 1), result[:, 1:].flatten(), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    learnt("the loss", loss.item(), most=2.0)


class VisionTransformer(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 3, 3)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), patches], 1) + self.places
        return self.head(self.norm(self.body(x))[:, 0])


def vision_transformer(seed: int) -> None:
    model, share = VisionTransformer(), cosine(350, 40)
    optimizer = AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = LambdaLR(optimizer, lambda step: share(step + 1))
    right = classify(model, optimizer, images(dice_of(seed)), 350, batch=32, schedule=schedule, clip=1.0)
    learnt("accuracy", right, least=0.8)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = self.block(1, 8), self.block(8, 16)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, 2), self.block(16, 8)
        self.head = nn.Conv2d(8, 1, 1)

    @staticmethod
    def block(given: int, out: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(given, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down(x)
        coarse = self.deep(nn.functional.max_pool2d(fine, 2))
        return self.head(self.last(torch.cat([fine, self.up(coarse)], 1)))


def segmentation(seed: int) -> None:
    """Cross-entropy and a loss of overlap together."""
    dice, model = dice_of(seed), UNet()
    optimizer = AdamW(model.parameters(), lr=3e-3)
    grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))
    for _ in range(350):
        middle = 4 + 8 * torch.rand(16, 2, 1, 1, generator=dice)
        mask = ((grid - middle).norm(dim=1) < 3.5).float()[:, None]
        scores = model(mask + 0.5 * torch.randn(mask.shape, generator=dice))
        sure = scores.sigmoid()
        overlap = (2 * (sure * mask).sum() + 1) / (sure.sum() + mask.sum() + 1)
        loss = binary_cross_entropy_with_logits(scores, mask) + 1 - overlap
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    learnt("the overlap", overlap.item(), least=0.85)


class GraphNetwork(nn.Module):
    def __init__(self, given: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(given, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, links: Tensor) -> Tensor:
        hidden = dropout(relu(links @ self.one(x)), 0.5, self.training)
        return links @ self.two(hidden)


def graph(seed: int) -> None:
    """Communities in a graph, from few labels: the whole graph in every step."""
    dice, count = Generator().manual_seed(9), 200
    labels = torch.arange(count) % 4
    together = torch.where(labels[:, None] == labels[None], 0.15, 0.01)
    links = (torch.rand(count, count, generator=dice) < together).float()
    links = ((links + links.T) > 0).float() + torch.eye(count)
    links = links / links.sum(1, keepdim=True)
    x = torch.randn(count, 16, generator=dice) + 0.5 * torch.randn(4, 16, generator=dice)[labels]
    order = torch.randperm(count, generator=dice_of(seed))[:60]
    model = GraphNetwork(16)
    optimizer = Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    for _ in range(600):
        loss = cross_entropy(model(x, links)[order], labels[order])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (model(x, links).argmax(1) == labels).float().mean().item()
    learnt("accuracy", right, least=0.9)


def physics(seed: int) -> None:
    """A PINN: the residual of an equation and its ends as the loss, by Adam and then by L-BFGS."""
    dice = dice_of(seed)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def loss_at(x: Tensor) -> Tensor:
        x.requires_grad_()
        u = model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        inside = (bend + torch.pi**2 * torch.sin(torch.pi * x)).square().mean()
        return inside + 10 * model(torch.tensor([[0.0], [1.0]])).square().mean()

    optimizer: torch.optim.Optimizer = Adam(model.parameters(), lr=2e-3)
    for _ in range(900):
        loss = loss_at(torch.rand(64, 1, generator=dice))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    fixed = torch.linspace(0, 1, 101)[:, None]
    optimizer = LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_at(fixed.detach().clone())
        loss.backward()
        return loss

    for _ in range(30):
        optimizer.step(closure)
    with torch.no_grad():
        error = (model(fixed) - torch.sin(torch.pi * fixed)).abs().max().item()
    learnt("the largest error", error, most=0.1)


class Experts(nn.Module):
    """Two of eight experts for each row, by a router that is kept from choosing the same ones always."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 8)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 48), nn.ReLU(), nn.Linear(48, width)) for _ in range(8)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shares = self.gate(x).softmax(1)
        top = shares.topk(2, 1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, which = (top.indices == number).nonzero(as_tuple=True)
            if len(rows):
                out = out.index_add(0, rows, top.values[rows, which, None] * expert(x[rows]))
        load = torch.zeros(8).index_add(0, top.indices.flatten(), torch.ones(top.indices.numel()))
        return x + out, 8 * (load / load.sum() * shares.mean(0)).sum()


def mixture_of_experts(seed: int) -> None:
    draw = points(dice_of(seed))
    body, head = Experts(), nn.Linear(32, 10)
    model = nn.ModuleList([body, head])
    optimizer = AdamW(model.parameters(), lr=2e-3)
    for _ in range(700):
        inputs, labels = draw(64)
        codes, balance = body(inputs)
        scores = head(codes)
        optimizer.zero_grad()
        (cross_entropy(scores, labels) + 0.1 * balance).backward()
        optimizer.step()
    learnt("accuracy", (scores.argmax(1) == labels).float().mean().item(), least=0.85)


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(8, 32, batch_first=True, bidirectional=True), nn.Linear(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        return log_softmax(self.head(self.cell(x)[0]), 2).transpose(0, 1)


def speech(seed: int) -> None:
    """CTC: the output is blank for a while before the letters come."""
    dice, model = dice_of(seed), Speech()
    sounds = torch.randn(6, 8, generator=Generator().manual_seed(2)) * 2
    optimizer = Adam(model.parameters(), lr=5e-3)
    for _ in range(300):
        result = torch.randint(1, 6, (16, 4), generator=dice)
        heard = sounds[result.repeat_interleave(4, 1)] + 0.5 * torch.randn(16, 16, 8, generator=dice)
        loss = ctc_loss(model(heard), result, torch.full((16,), 16), torch.full((16,), 4))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    learnt("the loss", loss.item(), most=1.0)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in "ab")
        self.norm_one, self.norm_two = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        nn.init.zeros_(self.norm_two.weight)

    def forward(self, x: Tensor) -> Tensor:
        return relu(x + self.norm_two(self.two(relu(self.norm_one(self.one(x))))))


def resnet(seed: int) -> None:
    """Gains that start at zero, as in the recipes for large batches."""
    blocks = [Residual(16) for _ in range(3)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    model = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), *blocks, *head)
    share = cosine(300, 15)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = LambdaLR(optimizer, lambda step: share(step + 1))
    right = classify(model, optimizer, images(dice_of(seed)), 300, batch=32, schedule=schedule)
    learnt("accuracy", right, least=0.8)
    accuracy(model, images(dice_of(seed))(100))
