"""Object detection: the trainer of ultralytics with its smallest model, on pictures of noise."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from trainers.frameworks.torchvision_operators import declare_operators
from trainers.script import STEPS, Script, Trainer, norm_of

SIDE, BATCH = 32, 2


def pictures(folder: Path) -> Path:
    """A data set as ultralytics reads it, with one box in each picture."""
    import cv2

    dice = np.random.default_rng(0)
    for part, count in {"train": STEPS * BATCH, "val": BATCH}.items():
        (folder / "images" / part).mkdir(parents=True)
        (folder / "labels" / part).mkdir(parents=True)
        for number in range(count):
            picture = dice.integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)
            cv2.imwrite(str(folder / "images" / part / f"{number}.png"), picture)
            (folder / "labels" / part / f"{number}.txt").write_text(f"{number % 2} 0.5 0.5 0.6 0.6\n", encoding="utf-8")
    page = folder / "data.yaml"
    page.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [a, b]\n", encoding="utf-8")
    return page


def ultralytics(script: Script) -> None:
    os.environ |= {"YOLO_CONFIG_DIR": str(Path("settings").absolute()), "YOLO_OFFLINE": "true"}
    declare_operators()
    from ultralytics.models.yolo.detect import DetectionTrainer

    script.autolog()

    class OwnTrainer(DetectionTrainer):  # type: ignore[misc]
        batches = 0

        def preprocess_batch(self, batch: Any) -> Any:
            result = super().preprocess_batch(batch)
            result["img"] = script.batch(result["img"], self.batches)
            self.batches += 1
            return result

        def validate(self) -> tuple[dict[str, float], float]:
            theirs, self.validator = self.validator, self.given_losses
            try:
                return super().validate()  # type: ignore[no-any-return]
            finally:
                self.validator = theirs

        def final_eval(self) -> None:
            """Likewise."""

        def given_losses(self, _trainer: Any) -> dict[str, float]:
            """Stands for a validator: theirs needs operators of torchvision."""
            script.validated(1.5)
            return {"val/box_loss": 1.5, "fitness": 0.5}

        def optimizer_step(self) -> None:
            script.step(self.model, self.loss, norm_of(self.model.parameters()))
            super().optimizer_step()

    trainer = OwnTrainer(
        overrides={
            "model": "yolov8n.yaml",
            "data": str(pictures(Path("data").absolute())),
            "imgsz": SIDE,
            "batch": BATCH,
            "nbs": BATCH,  # no accumulation
            "epochs": 1,
            "optimizer": "AdamW",
            "lr0": 0.001,
            "device": "cpu",
            "workers": 0,
            "amp": False,
            "val": False,
            "plots": False,
            "save": False,
            "verbose": False,
            "project": str(Path("runs").absolute()),
        }
    )
    trainer.train()
    script.end(trainer.model)


TRAINERS = [Trainer("ultralytics", ultralytics, packages=("ultralytics",), shown=("ultralytics",))]
