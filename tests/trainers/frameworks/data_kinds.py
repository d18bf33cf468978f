"""Libraries for one kind of data: MONAI for images, PyG for graphs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from trainers.script import STEPS, Script, Trainer, norm_of


def monai(script: Script) -> None:
    """Its own trainer, over ignite, with a U-Net and a loss of overlap."""
    from monai.engines import SupervisedTrainer
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    script.autolog()
    model = UNet(spatial_dims=2, in_channels=1, out_channels=2, channels=(4, 8), strides=(2,), dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    images = [
        {"image": script.batch(torch.rand(2, 1, 16, 16), step), "label": torch.randint(2, (2, 1, 16, 16))}
        for step in range(STEPS)
    ]
    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=1,
        train_data_loader=torch.utils.data.DataLoader(images, batch_size=None),  # type: ignore[arg-type]
        network=model,
        optimizer=optimizer,
        loss_function=DiceCELoss(to_onehot_y=True, softmax=True),
    )

    def note(optimizer: torch.optim.Optimizer, *call: object) -> None:
        script.step(model, trainer.state.output["loss"], norm_of(model.parameters()))

    optimizer.register_step_pre_hook(note)
    trainer.run()
    script.end(model)


def pyg(script: Script) -> None:
    """A graph convolution over batches of small graphs."""
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GCNConv, global_mean_pool

    script.autolog()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = GCNConv(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)

        def forward(self, batch: Data) -> Tensor:
            hidden = torch.tanh(self.norm(self.first(batch.x, batch.edge_index)))
            output: Tensor = self.last(global_mean_pool(hidden, batch.batch))
            return output

    graphs = [Data(x=torch.randn(5, 6), edge_index=torch.randint(5, (2, 12))) for _ in range(STEPS * 4)]
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step, batch in enumerate(DataLoader(graphs, batch_size=4, shuffle=True)):
        batch.x = script.batch(batch.x, step)
        loss = nn.functional.mse_loss(model(batch), torch.ones(4, 1))
        optimizer.zero_grad()
        loss.backward()
        script.step(model, loss, norm_of(model.parameters()))
        optimizer.step()
    script.end(model)


TRAINERS = [
    Trainer("MONAI", monai, packages=("monai", "pytorch-ignite"), shown=("monai", "pytorch-ignite")),
    Trainer("PyG", pyg, packages=("torch_geometric",), shown=("torch_geometric",)),
]
