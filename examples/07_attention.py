"""Looks inside attention: which tokens the heads of a small transformer look at, and how that differs in two runs.

    python examples/07_attention.py

Every head's entropy is in the record; maps are in the run, as pictures with a slider over the steps and as numbers.
"""

import logging

import mlflow
import torch
from torch import nn

import mlflow_stability

logging.getLogger("mlflow").setLevel(logging.WARNING)


def train(name: str, rate: float) -> str:
    """Learn to repeat the token before the last; the id of the run."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(16, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    with mlflow.start_run(run_name=name) as run:
        for _ in range(51):
            tokens = torch.randint(16, (16, 24))
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return run.info.run_id


mlflow_stability.autolog(attention_every_n_steps=25)
calm, hot = train("calm", 3e-3), train("hot", 0.3)
session = mlflow_stability.current_session()
mlflow_stability.autolog(disable=True)
session.wait(60)  # at the end of a script this happens by itself

for run_id in (calm, hot):
    frame = mlflow_stability.load_run(run_id)
    heads = [name for name in frame.columns if name.startswith("attention_entropy@")]
    entropy = frame.loc[frame[heads[0]].notna(), ["step", *heads]].set_index("step").mean(axis=1)
    print("mean entropy of 8 heads:", ", ".join(f"step {step}: {value:.2f}" for step, value in entropy.items()))

figures = {
    "one layer": mlflow_stability.attention_heatmap(calm),
    "two runs": mlflow_stability.compare_attention(calm, hot),
    "entropy": mlflow_stability.attention_entropy_plot(hot),
}
for what, figure in figures.items():  # figure.savefig("attention.png", dpi=300), or the last line of a notebook's cell
    print(f"{what}: a figure of {len(figure.axes)} panels")
client = mlflow.MlflowClient()
print(*(artifact.path for artifact in client.list_artifacts(calm, "stability/attention")), sep="\n")
