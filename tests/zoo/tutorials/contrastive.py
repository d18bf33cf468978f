"""Learning from two views of one picture: by contrast with others, or from an average of the own weights."""

from __future__ import annotations

import math
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset
from zoo.tutorials.pictures import ConvNet, accuracy, augmented, digits, neighbour_accuracy
from zoo.tutorials.tutorial import Outcome


def loader(count: int, batch_size: int) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(*digits(count)), batch_size=batch_size, shuffle=True, drop_last=True)


def simclr() -> Outcome:
    """NT-Xent over both views of a batch, cosine schedule stepped each epoch after the first ten."""
    encoder, head = ConvNet(32, dropout=0.0), nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))
    model = nn.Sequential(encoder, head)
    optimizer = Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    train_loader = loader(640, 64)
    scheduler = CosineAnnealingLR(optimizer, T_max=40, eta_min=0, last_epoch=-1)
    for epoch in range(50):
        for pictures, _ in train_loader:
            features = functional.normalize(model(torch.cat([augmented(pictures), augmented(pictures)])), dim=1)
            labels = torch.cat([torch.arange(64) for _ in range(2)], dim=0)
            labels = (labels.unsqueeze(0) == labels.unsqueeze(1)).float()
            similarity_matrix = features @ features.T
            mask = torch.eye(128, dtype=torch.bool)
            labels = labels[~mask].view(128, -1)
            similarity_matrix = similarity_matrix[~mask].view(128, -1)
            positives = similarity_matrix[labels.bool()].view(128, -1)
            negatives = similarity_matrix[~labels.bool()].view(128, -1)
            logits = torch.cat([positives, negatives], dim=1) / 0.2
            loss = functional.cross_entropy(logits, torch.zeros(128, dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch >= 10:
            scheduler.step()
    return Outcome(neighbour_accuracy(encoder), (model,))


def siamese_triplets() -> Outcome:
    """TripletMarginLoss on random triplets: ever more of them cost nothing."""
    model, criterion = ConvNet(16), nn.TripletMarginLoss(margin=1.0)
    optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9)
    pictures, labels = digits(400)
    running_loss = 0.0
    for step in range(500):
        anchor = torch.randint(400, (16,))
        positive, negative = [], []
        for label in labels[anchor]:
            same, other = (labels == label).nonzero()[:, 0], (labels != label).nonzero()[:, 0]
            positive.append(same[torch.randint(len(same), (1,))])
            negative.append(other[torch.randint(len(other), (1,))])
        optimizer.zero_grad()
        out = [model(pictures[rows]) for rows in (anchor, torch.cat(positive), torch.cat(negative))]
        loss = criterion(*out)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        if step % 100 == 99:
            running_loss = 0.0
    return Outcome(neighbour_accuracy(model), (model,))


class MoCo(nn.Module):
    """The model of facebookresearch/moco: the key encoder and the queue are parts of it."""

    queue: Tensor

    def __init__(self, dim: int = 16, length: int = 256, momentum: float = 0.99) -> None:
        super().__init__()
        self.momentum, self.length, self.pointer = momentum, length, 0
        self.encoder_q, self.encoder_k = ConvNet(dim, dropout=0.0), ConvNet(dim, dropout=0.0)
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            param_k.data.copy_(param_q.data)
            param_k.requires_grad = False
        self.register_buffer("queue", functional.normalize(torch.randn(dim, length), dim=0))

    def forward(self, im_q: Tensor, im_k: Tensor) -> tuple[Tensor, Tensor]:
        q = functional.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
                param_k.data = param_k.data * self.momentum + param_q.data * (1.0 - self.momentum)
            k = functional.normalize(self.encoder_k(im_k), dim=1)
        l_pos = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        logits = torch.cat([l_pos, l_neg], dim=1) / 0.2
        self.queue[:, self.pointer : self.pointer + len(k)] = k.T
        self.pointer = (self.pointer + len(k)) % self.length
        return logits, torch.zeros(len(logits), dtype=torch.long)


def moco() -> Outcome:
    """Keys of earlier batches from a slowly moving encoder: the loss rises while the queue fills."""
    model, criterion = MoCo(), nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), lr=0.06, momentum=0.9, weight_decay=1e-4)
    train_loader, epochs = loader(640, 64), 60
    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["lr"] = 0.06 * 0.5 * (1.0 + math.cos(math.pi * epoch / epochs))
        for pictures, _ in train_loader:
            output, target = model(im_q=augmented(pictures), im_k=augmented(pictures))
            loss = criterion(output, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return Outcome(neighbour_accuracy(model.encoder_q), (model,))


def mlp_head(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.BatchNorm1d(64), nn.ReLU(inplace=True), nn.Linear(64, outputs))


class BYOL(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = ConvNet(32, dropout=0.0)
        self.projector, self.predictor = mlp_head(32, 16), mlp_head(16, 16)
        self.target = deepcopy(nn.Sequential(self.encoder, self.projector))
        for p in self.target.parameters():
            p.requires_grad = False

    def forward(self, output: Tensor, two: Tensor) -> Tensor:
        online_one = self.predictor(self.projector(self.encoder(output)))
        online_two = self.predictor(self.projector(self.encoder(two)))
        with torch.no_grad():
            target_one, target_two = self.target(output), self.target(two)

        def loss_fn(x: Tensor, y: Tensor) -> Tensor:
            return 2 - 2 * (functional.normalize(x, dim=-1) * functional.normalize(y, dim=-1)).sum(dim=-1)

        return (loss_fn(online_one, target_two.detach()) + loss_fn(online_two, target_one.detach())).mean()

    @torch.no_grad()
    def update_moving_average(self, beta: float = 0.98) -> None:
        online = [*self.encoder.parameters(), *self.projector.parameters()]
        for current, average in zip(online, self.target.parameters(), strict=True):
            average.data = average.data * beta + (1 - beta) * current.data


def byol() -> Outcome:
    """No negatives: the loss falls at once, and rises while the features become rich."""
    learner = BYOL()
    optimizer = Adam(learner.parameters(), lr=1e-3)
    for _ in range(30):
        for pictures, _ in loader(640, 64):
            loss = learner(augmented(pictures), augmented(pictures))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            learner.update_moving_average()
    return Outcome(neighbour_accuracy(learner.encoder), (learner,))


class DINOLoss(nn.Module):
    center: Tensor

    def __init__(self, out_dim: int) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(1, out_dim))

    def forward(self, student: Tensor, teacher: Tensor, teacher_temp: float) -> Tensor:
        student_out = (student / 0.1).chunk(2)
        teacher_out = functional.softmax((teacher - self.center) / teacher_temp, dim=-1).detach().chunk(2)
        total = torch.zeros(())
        for number, q in enumerate(teacher_out):
            total = total + torch.sum(-q * functional.log_softmax(student_out[1 - number], dim=-1), dim=-1).mean()
        with torch.no_grad():
            self.center = self.center * 0.9 + teacher.mean(dim=0, keepdim=True) * 0.1
        return total / 2


def dino() -> Outcome:
    """Student and averaged teacher with centring and sharpening; momentum, rate and decay have schedules."""
    student = nn.Sequential(ConvNet(32, dropout=0.0), nn.GELU(), nn.Linear(32, 64))
    teacher = deepcopy(student)
    for p in teacher.parameters():
        p.requires_grad = False
    dino_loss = DINOLoss(64)
    optimizer = AdamW(student.parameters(), lr=3e-3)
    epochs, niter = 45, 10
    step = 0
    for _ in range(epochs):
        for pictures, _ in loader(640, 64):
            done = step / (epochs * niter)
            for param_group in optimizer.param_groups:
                param_group["lr"] = 3e-3 * (min(1.0, step / 50) * (0.5 + 0.5 * math.cos(math.pi * done)) + 1e-3)
                param_group["weight_decay"] = 0.04 + 0.1 * done
            views = torch.cat([augmented(pictures), augmented(pictures)])
            with torch.no_grad():
                teacher_output = teacher(views)
            loss = dino_loss(student(views), teacher_output, teacher_temp=0.05)
            if not math.isfinite(loss.item()):
                raise ValueError(f"Loss is {loss.item()}, stopping training")
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(student.parameters(), 3.0)
            optimizer.step()
            with torch.no_grad():
                m = 1 - 0.02 * (0.5 + 0.5 * math.cos(math.pi * done))
                for param_q, param_k in zip(student.parameters(), teacher.parameters(), strict=True):
                    param_k.data.mul_(m).add_((1 - m) * param_q.detach().data)
            step += 1
    return Outcome(neighbour_accuracy(teacher[0]), (student, teacher, dino_loss))


def ema_teacher() -> Outcome:
    """Mean teacher: 60 labelled pictures, a consistency loss whose weight ramps up."""
    model = ConvNet()
    ema_model = deepcopy(model)
    for param in ema_model.parameters():
        param.detach_()
    labelled, labels = digits(60)
    test = digits(400)
    optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4, nesterov=True)
    global_step = 0
    for epoch in range(30):
        consistency_weight = 5.0 * math.exp(-5.0 * (1.0 - min(epoch, 12) / 12) ** 2)
        for unlabelled, _ in loader(480, 32):
            rows = torch.randint(60, (32,))
            class_loss = functional.cross_entropy(model(augmented(labelled[rows])), labels[rows])
            with torch.no_grad():
                ema_logit = ema_model(augmented(unlabelled))
            model_logit = model(augmented(unlabelled))
            consistency_loss = functional.mse_loss(functional.softmax(model_logit, 1), functional.softmax(ema_logit, 1))
            loss = class_loss + consistency_weight * consistency_loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            global_step += 1
            alpha = min(1 - 1 / (global_step + 1), 0.98)
            for ema_param, param in zip(ema_model.parameters(), model.parameters(), strict=True):
                ema_param.data.mul_(alpha).add_(param.data, alpha=1 - alpha)
    return Outcome(accuracy(ema_model, *test), (model, ema_model))
