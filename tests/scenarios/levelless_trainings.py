"""Small trainings as public tutorials write them: some whose loss has no level, and their supervised look-alikes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from scenarios.levelless_policies import (
    actor_critic,
    average,
    dqn,
    mlp,
    parallel_q_learning,
    ppo,
    reinforce_continuous,
    reinforce_one_by_one,
    sac,
    state_of,
    step,
    td3,
)
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, MixtureSameFamily, Normal
from torch.nn import functional

Training = Callable[[int], object]
"""Takes the number of steps to train; gives something to compare."""


def images(seed: int = 0, count: int = 512) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 16, generator=generator)
    return inputs, (inputs @ torch.randn(16, 4, generator=generator)).argmax(1)


def byol(steps: int) -> object:
    """The target is the online network without its predictor, averaged."""
    torch.manual_seed(7)

    class Online(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.projector, self.predictor = mlp(16, 32), mlp(32, 8), mlp(8, 8)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.predictor(self.projector(self.encoder(inputs)))

    online = Online()
    encoder, projector = copy.deepcopy(online.encoder), copy.deepcopy(online.projector)
    optimizer = torch.optim.SGD(online.parameters(), lr=0.05, momentum=0.9)
    inputs, _ = images()
    for _ in range(steps):
        chosen = inputs[torch.randint(len(inputs), (64,))]
        first, two = (chosen + 0.3 * torch.randn_like(chosen) for _ in range(2))
        with torch.no_grad():
            wanted = projector(encoder(two))
        step(optimizer, 2 - 2 * functional.cosine_similarity(online(first), wanted).mean())
        average(encoder, online.encoder, 0.01)
        average(projector, online.projector, 0.01)
    return state_of(online)


def moco(steps: int) -> object:
    """One module holds both encoders, all of its parameters are in the optimizer, and those of the keys are frozen."""
    torch.manual_seed(8)

    class Contrast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = mlp(16, 8)
            self.key = copy.deepcopy(self.query).requires_grad_(False)
            self.register_buffer("queue", functional.normalize(torch.randn(256, 8), dim=1))

        def forward(self, output: Tensor, two: Tensor) -> Tensor:
            asked = functional.normalize(self.query(output), dim=1)
            with torch.no_grad():
                average(self.key, self.query, 0.01)
                keys = functional.normalize(self.key(two), dim=1)
            logits = torch.cat([(asked * keys).sum(1, keepdim=True), asked @ self.queue.T.clone()], 1)
            self.queue = torch.cat([keys, self.queue])[:256]
            return functional.cross_entropy(logits / 0.1, torch.zeros(len(output), dtype=torch.long))

    model = Contrast()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    inputs, _ = images()
    for _ in range(steps):
        chosen = inputs[torch.randint(len(inputs), (64,))]
        first, two = (chosen + 0.3 * torch.randn_like(chosen) for _ in range(2))
        step(optimizer, model(first, two))
    return state_of(model)


def mean_teacher(steps: int) -> object:
    torch.manual_seed(9)
    student = mlp(16, 4)
    teacher = copy.deepcopy(student)
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    inputs, labels = images()
    for _ in range(steps):
        chosen = torch.randint(len(inputs), (32,))
        noisy = inputs[chosen] + 0.3 * torch.randn(32, 16)
        with torch.no_grad():
            wanted = teacher(inputs[chosen]).softmax(1)
        answers = student(noisy)
        loss = functional.cross_entropy(answers, labels[chosen])
        step(optimizer, loss + functional.mse_loss(answers.softmax(1), wanted))
        average(teacher, student, 0.01)
    return state_of(student)


def dpo(steps: int) -> object:
    """Direct preference optimisation by hand: a frozen copy of the start is the reference."""
    torch.manual_seed(10)
    policy = nn.Sequential(nn.Embedding(20, 16), nn.Flatten(), nn.Linear(64, 20))
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    for _ in range(steps):
        prompts, better = torch.randint(20, (32, 4)), torch.randint(10, (32, 1))
        worse = better + 10
        own = policy(prompts).log_softmax(1)
        with torch.no_grad():
            its = reference(prompts).log_softmax(1)
        margin = (own - its).gather(1, better) - (own - its).gather(1, worse)
        step(optimizer, -functional.logsigmoid(0.1 * margin).mean())
    return state_of(policy)


def classifier_with_average(steps: int) -> object:
    """An average of the weights is kept, and evaluated after each epoch of 8 steps."""
    torch.manual_seed(11)
    model = mlp(16, 4)
    mean = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs, labels = images()
    for number in range(steps):
        chosen = torch.randint(len(inputs), (64,))
        step(optimizer, functional.cross_entropy(model(inputs[chosen]), labels[chosen]))
        average(mean, model, 0.01)
        if number % 8 == 7:
            with torch.no_grad():
                for part, wanted in zip(inputs.split(64), labels.split(64), strict=True):
                    functional.cross_entropy(mean(part), wanted)
    return state_of(model)


def distillation(steps: int) -> object:
    """The teacher is of the same class, was trained before and stays as it is."""
    torch.manual_seed(12)
    teacher, student = mlp(16, 4), mlp(16, 4)
    teacher.eval().requires_grad_(False)
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    inputs, _ = images()
    for _ in range(steps):
        chosen = inputs[torch.randint(len(inputs), (64,))]
        with torch.no_grad():
            wanted = teacher(chosen).softmax(1)
        step(optimizer, functional.kl_div(student(chosen).log_softmax(1), wanted, reduction="batchmean"))
    return state_of(student)


def vae(steps: int) -> object:
    """Its likelihood and its divergence are taken with torch.distributions."""
    torch.manual_seed(13)
    encoder, decoder = mlp(16, 8), mlp(4, 16)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    inputs = (images()[0] > 0).float()
    for _ in range(steps):
        chosen = inputs[torch.randint(len(inputs), (64,))]
        mean, width = encoder(chosen).chunk(2, 1)
        coded, prior = Normal(mean, width.exp()), Normal(torch.zeros(4), torch.ones(4))
        drawn = coded.rsample()
        fit = Bernoulli(logits=decoder(drawn)).log_prob(chosen).sum(1)
        step(optimizer, -(fit - (coded.log_prob(drawn) - prior.log_prob(drawn)).sum(1)).mean())
    return state_of(encoder, decoder)


def flow(steps: int) -> object:
    """A normalising flow whose negative log-likelihood falls from above zero to below; it draws samples to look at."""
    torch.manual_seed(14)

    class Affine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))

    model = Affine()
    base = Normal(torch.zeros(2), torch.ones(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    data = 0.05 * torch.randn(1024, 2) + 0.5
    for _ in range(steps):
        chosen = data[torch.randint(len(data), (64,))]
        coded = (chosen - model.shift) * model.scale
        step(optimizer, -(base.log_prob(coded) + model.scale.abs().log()).sum(1).mean())
        with torch.no_grad():
            base.log_prob(base.sample((8,)))
    return state_of(model)


def mixture_density(steps: int) -> object:
    """A mixture of normals that is drawn from after each step, to be looked at."""
    torch.manual_seed(15)
    model = mlp(1, 9)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        inputs = torch.rand(64, 1) * 6
        data = inputs.sin().squeeze(1) + 0.1 * torch.randn(64)
        logits, mean, width = model(inputs).chunk(3, 1)
        density = MixtureSameFamily(Categorical(logits=logits), Normal(mean, width.exp() + 1e-2))
        step(optimizer, -density.log_prob(data).mean())
        density.sample()
    return state_of(model)


def contrastive(steps: int) -> object:
    """SimCLR: both views pass through the same network."""
    torch.manual_seed(16)
    model = mlp(16, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs, _ = images()
    for _ in range(steps):
        chosen = inputs[torch.randint(len(inputs), (64,))]
        first, two = (functional.normalize(model(chosen + 0.3 * torch.randn_like(chosen)), dim=1) for _ in range(2))
        step(optimizer, functional.cross_entropy(first @ two.T / 0.5, torch.arange(64)))
    return state_of(model)


def lazy_accuracy(steps: int) -> object:
    """The accuracy on the batch is computed by a second pass, after each step."""
    torch.manual_seed(17)
    model = mlp(16, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs, labels = images()
    for _ in range(steps):
        chosen = torch.randint(len(inputs), (64,))
        step(optimizer, functional.cross_entropy(model(inputs[chosen]), labels[chosen]))
        with torch.no_grad():
            (model(inputs[chosen]).argmax(1) == labels[chosen]).float().mean()
    return state_of(model)


def validation(steps: int) -> object:
    """The loss of all data is computed after each step, and that of what is left over."""
    torch.manual_seed(20)
    model = mlp(16, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs, labels = images()
    for _ in range(steps):
        chosen = torch.randint(len(inputs), (64,))
        step(optimizer, functional.cross_entropy(model(inputs[chosen]), labels[chosen]))
        with torch.no_grad():
            functional.cross_entropy(model(inputs), labels)
            functional.cross_entropy(model(inputs[:10]), labels[:10])
    return state_of(model)


def single_samples(steps: int) -> object:
    """One sample at a time; every 20 steps some are looked at in evaluation mode."""
    torch.manual_seed(21)
    model = mlp(16, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs, labels = images()
    for number in range(steps):
        step(optimizer, functional.cross_entropy(model(inputs[number : number + 1]), labels[number : number + 1]))
        if number % 20 == 10:
            model.eval()
            for other in range(5):
                model(inputs[other : other + 1])
            model.train()
    return state_of(model)


def language_model(steps: int) -> object:
    """Tied weights; text is generated every 20 steps, by a distribution that also tells how likely each token was."""
    torch.manual_seed(18)

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.mixing = nn.Embedding(20, 16), nn.Linear(16, 16)
            self.output = nn.Linear(16, 20, bias=False)
            self.output.weight = self.embedding.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.output(self.mixing(self.embedding(tokens)).tanh())

    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number in range(steps):
        tokens = (torch.arange(9) + torch.randint(20, (32, 1))) % 20
        step(optimizer, functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()))
        if number % 20 == 10:
            with torch.no_grad():
                last = torch.zeros(1, dtype=torch.long)
                for _ in range(10):
                    choice = Categorical(logits=model(last))
                    last = choice.sample()
                    choice.log_prob(last)
    return state_of(model)


def sequence_lengths(steps: int) -> object:
    """Two micro-batches a step, of sequences of different lengths."""
    torch.manual_seed(19)
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 20))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number in range(steps):
        optimizer.zero_grad()
        for length in (5 + number % 3, 9 + number % 4):
            tokens = torch.randint(20, (8, length))
            (functional.cross_entropy(model(tokens).flatten(0, 1), (tokens.flatten() + 1) % 20) / 2).backward()
        optimizer.step()
    return state_of(model)


WITHOUT_LEVEL: dict[str, Training] = {
    item.__name__: item
    for item in (
        dqn,
        parallel_q_learning,
        ppo,
        actor_critic,
        reinforce_continuous,
        reinforce_one_by_one,
        sac,
        td3,
        byol,
        moco,
        mean_teacher,
        dpo,
    )
}


def optimizer_for_each_parameter(steps: int) -> object:
    """As Pyro makes them, at the first step: the second head looks like a copy of the first until then."""
    torch.manual_seed(21)
    heads = nn.ModuleList([nn.Linear(16, 4), nn.Linear(16, 4)])
    optimizers: dict[nn.Parameter, torch.optim.Optimizer] = {}
    inputs, labels = images()
    for _ in range(steps):
        chosen = torch.randint(len(inputs), (64,))
        outputs = heads[0](inputs[chosen]) * heads[1](inputs[chosen]).sigmoid()
        functional.cross_entropy(outputs, labels[chosen]).backward()
        for parameter in heads.parameters():
            if parameter not in optimizers:
                optimizers[parameter] = torch.optim.Adam([parameter], lr=1e-3)
            optimizers[parameter].step()
        heads.zero_grad()
    return state_of(heads)


WITH_LEVEL: dict[str, Training] = {
    item.__name__: item
    for item in (
        classifier_with_average,
        distillation,
        vae,
        flow,
        mixture_density,
        contrastive,
        lazy_accuracy,
        language_model,
        sequence_lengths,
        single_samples,
        validation,
        optimizer_for_each_parameter,
    )
}
