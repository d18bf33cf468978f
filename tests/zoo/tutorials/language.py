"""Sequences: a Transformer with Noam's schedule, recurrent language models, and learning from preferences."""

from __future__ import annotations

import math
from copy import deepcopy

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import LambdaLR
from zoo.tutorials.tutorial import Outcome

WORDS = 40
CHAIN = torch.softmax(3 * torch.randn(WORDS, WORDS, generator=Generator().manual_seed(11)), 1)
"""How likely each word follows another."""
TEXT = (
    "the quick brown fox jumps over the lazy dog while a wizard of the north quietly mixes some very odd juice "
    "and packs a box with five dozen jugs before the judge of the village asks for his quart of the best ale"
)


def corpus(tokens: int) -> Tensor:
    """A text of made-up words."""
    words = [0]
    for _ in range(tokens - 1):
        words.append(int(torch.multinomial(CHAIN[words[-1]], 1)))
    return torch.tensor(words)


class PositionalEncoding(nn.Module):
    pe: Tensor

    def __init__(self, d_model: int, dropout: float = 0.1, max_len: int = 32) -> None:
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(1, max_len, d_model)
        pe[0, :, 0::2] = torch.sin(position * div_term)
        pe[0, :, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x + self.pe[:, : x.size(1)])


class Seq2SeqTransformer(nn.Module):
    def __init__(self, vocabulary: int = 16, d_model: int = 32) -> None:
        super().__init__()
        self.d_model = d_model
        self.src_embed, self.tgt_embed = nn.Embedding(vocabulary, d_model), nn.Embedding(vocabulary, d_model)
        self.positions = PositionalEncoding(d_model)
        self.transformer = nn.Transformer(d_model, 4, 1, 1, 64, 0.1, batch_first=True)
        self.generator = nn.Linear(d_model, vocabulary)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
        src_emb = self.positions(self.src_embed(src) * math.sqrt(self.d_model))
        tgt_emb = self.positions(self.tgt_embed(tgt) * math.sqrt(self.d_model))
        return self.generator(self.transformer(src_emb, tgt_emb, tgt_mask=mask))


def seq2seq_noam() -> Outcome:
    """The annotated Transformer's first task, reversed: label smoothing, Noam's warm-up, two batches for each step."""
    model = Seq2SeqTransformer()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)

    def rate(step: int, factor: float = 0.7, warmup: int = 150) -> float:
        step = max(step, 1)
        return factor * (model.d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))

    scheduler = LambdaLR(optimizer, lr_lambda=rate)
    right = 0.0
    for _ in range(9):
        model.train()
        total_loss = 0.0
        for i in range(60):
            src = torch.randint(2, 16, (16, 8))
            tgt = torch.cat([torch.ones(16, 1, dtype=torch.long), src.flip(1)], dim=1)
            out = model(src, tgt[:, :-1])
            loss = criterion(out.reshape(-1, 16), tgt[:, 1:].reshape(-1))
            loss.backward()
            if i % 2 == 0:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            scheduler.step()
            total_loss += loss.item()
        model.eval()
        with torch.no_grad():
            src = torch.randint(2, 16, (100, 8))
            tgt = torch.cat([torch.ones(100, 1, dtype=torch.long), src.flip(1)], dim=1)
            right = model(src, tgt[:, :-1]).argmax(-1).eq(tgt[:, 1:]).float().mean().item()
    return Outcome(right, (model,))


class RNNModel(nn.Module):
    def __init__(self, vocabulary: int, width: int, dropout: float = 0.2) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, 2, dropout=dropout)
        self.decoder = nn.Linear(width, vocabulary)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, x: Tensor, hidden: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        output, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return self.decoder(self.drop(output)), hidden

    def init_hidden(self, batch: int) -> tuple[Tensor, Tensor]:
        weight = next(self.parameters())
        return weight.new_zeros(2, batch, self.rnn.hidden_size), weight.new_zeros(2, batch, self.rnn.hidden_size)


def word_language_model() -> Outcome:
    """pytorch/examples: SGD at a rate of 20, gradients clipped at 0.25, a quarter of the rate after a worse epoch."""

    def batchify(data: Tensor, batch: int) -> Tensor:
        rows = data.size(0) // batch
        return data.narrow(0, 0, rows * batch).view(batch, -1).t().contiguous()

    train_data, val_data = batchify(corpus(6000), 10), batchify(corpus(1000), 10)
    model, criterion, bptt = RNNModel(WORDS, 48), nn.CrossEntropyLoss(), 20
    lr, best_val_loss = 20.0, float("inf")
    optimizer = SGD(model.parameters(), lr=lr)

    def evaluate() -> float:
        model.eval()
        hidden, total_loss = model.init_hidden(10), 0.0
        with torch.no_grad():
            for i in range(0, val_data.size(0) - 1, bptt):
                length = min(bptt, len(val_data) - 1 - i)
                output, hidden = model(val_data[i : i + length], hidden)
                total_loss += (
                    length * criterion(output.view(-1, WORDS), val_data[i + 1 : i + 1 + length].view(-1)).item()
                )
        return total_loss / (len(val_data) - 1)

    for _ in range(14):
        model.train()
        hidden = model.init_hidden(10)
        for i in range(0, train_data.size(0) - 1, bptt):
            length = min(bptt, len(train_data) - 1 - i)
            model.zero_grad()
            hidden = (hidden[0].detach(), hidden[1].detach())
            output, hidden = model(train_data[i : i + length], hidden)
            loss = criterion(output.view(-1, WORDS), train_data[i + 1 : i + 1 + length].view(-1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
        val_loss = evaluate()
        if val_loss < best_val_loss:
            best_val_loss = val_loss
        else:
            lr /= 4.0
            for group in optimizer.param_groups:
                group["lr"] = lr
    return Outcome(best_val_loss, (model,))


def memorising_lstm() -> Outcome:
    """A character model that memorises one text: its loss ends near 0."""
    letters = sorted(set(TEXT))
    data = torch.tensor([letters.index(letter) for letter in TEXT])
    model, criterion = RNNModel(len(letters), 64, dropout=0.0), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(650):
        start = torch.randint(0, len(data) - 26, (8,))
        inputs = torch.stack([data[s : s + 25] for s in start], 1)
        targets = torch.stack([data[s + 1 : s + 26] for s in start], 1)
        output, _ = model(inputs, model.init_hidden(8))
        loss = criterion(output[8:].view(-1, len(letters)), targets[8:].view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Outcome(sum(losses[-20:]) / 20, (model,))


def names_rnn() -> Outcome:
    """The classification of names: batches of one, a manual loop over time, clipped gradients, a running loss."""
    hidden_size = 32
    i2h, h2o = nn.Linear(WORDS + hidden_size, hidden_size), nn.Linear(hidden_size, 4)
    rnn = nn.ModuleDict({"i2h": i2h, "h2o": h2o})
    criterion, optimizer = nn.NLLLoss(), SGD(rnn.parameters(), lr=0.02)
    current_loss, correct = 0.0, []
    for step in range(1, 1501):
        category = torch.randint(4, (1,))
        line = (torch.randint(14, (int(torch.randint(4, 9, (1,))),)) + 8 * category) % WORDS
        hidden = torch.zeros(1, hidden_size)
        rnn.zero_grad()
        for letter in line:
            one_hot = functional.one_hot(letter, WORDS).float()[None]
            hidden = torch.tanh(i2h(torch.cat((one_hot, hidden), 1)))
        output = functional.log_softmax(h2o(hidden), dim=1)
        loss = criterion(output, category)
        loss.backward()
        nn.utils.clip_grad_norm_(rnn.parameters(), 3)
        optimizer.step()
        current_loss += loss.item()
        correct.append(float(output.argmax(1).item() == category.item()))
        if step % 250 == 0:
            current_loss = 0.0
    return Outcome(sum(correct[-300:]) / 300, (rnn,))


def length_curriculum() -> Outcome:
    """Sums of marked numbers in sequences that become longer: the loss rises with each new length."""
    lstm, head = nn.LSTM(2, 32, batch_first=True), nn.Linear(32, 1)
    model = nn.ModuleList([lstm, head])
    optimizer = Adam(model.parameters(), lr=5e-3)

    def draw(count: int, length: int) -> tuple[Tensor, Tensor]:
        numbers, marks = torch.rand(count, length), torch.zeros(count, length)
        marks.scatter_(1, torch.rand(count, length).topk(2, 1).indices, 1.0)
        return torch.stack([numbers, marks], 2), (numbers * marks).sum(1, keepdim=True)

    for epoch in range(8):
        for _ in range(100):
            inputs, targets = draw(20, 3 + epoch)
            optimizer.zero_grad()
            loss = nn.MSELoss()(head(lstm(inputs)[0][:, -1]), targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
    with torch.no_grad():
        inputs, targets = draw(500, 10)
        error = (head(lstm(inputs)[0][:, -1]) - targets).square().mean().item()
    return Outcome(error, (model,))


class Bigram(nn.Module):
    """A language model of three earlier words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 24)
        self.layers = nn.Sequential(nn.Linear(72, 64), nn.GELU(), nn.Linear(64, WORDS))

    def log_prob(self, tokens: Tensor) -> Tensor:
        """Of whole sequences."""
        windows = tokens.unfold(1, 3, 1)[:, :-1]
        logits = self.layers(self.embedding(windows).flatten(2))
        return functional.log_softmax(logits, -1).gather(2, tokens[:, 3:, None])[..., 0].sum(1)


def preferences() -> Outcome:
    """DPO against a frozen reference: the loss starts at log 2 and says how often the preferred answer wins."""
    policy = Bigram()
    text = corpus(3000)
    pretraining = AdamW(policy.parameters(), lr=5e-3)
    for _ in range(150):
        start = torch.randint(0, len(text) - 12, (32,))
        nll_loss = -policy.log_prob(torch.stack([text[s : s + 12] for s in start])).mean() / 9
        pretraining.zero_grad()
        nll_loss.backward()
        pretraining.step()
    reference = deepcopy(policy).eval().requires_grad_(requires_grad=False)
    optimizer, beta = RMSprop(policy.parameters(), lr=1e-4), 0.1
    scheduler = LambdaLR(optimizer, lr_lambda=lambda step: min(1.0, (step + 1) / 50))
    accuracies = []
    for _ in range(400):
        first, second = torch.randint(WORDS, (2, 16, 10))
        liked = (first % 2).sum(1) > (second % 2).sum(1)
        chosen, rejected = torch.where(liked[:, None], first, second), torch.where(liked[:, None], second, first)
        with torch.no_grad():
            reference_margin = reference.log_prob(chosen) - reference.log_prob(rejected)
        margin = policy.log_prob(chosen) - policy.log_prob(rejected)
        losses = -functional.logsigmoid(beta * (margin - reference_margin))
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        accuracies.append((margin > reference_margin).float().mean().item())
    return Outcome(sum(accuracies[-50:]) / 50, (policy, reference))
