"""Fit an image classifier with the Lightning Trainer on one GPU."""
import argparse

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


class Classifier(L.LightningModule):
    def __init__(self, classes=100, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.features = nn.Sequential(block(3, 64), block(64, 128), block(128, 256), block(256, 512))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, classes))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self.head(self.features(images)), labels)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    L.seed_everything(0)
    count = args.batch_size * args.steps
    dataset = TensorDataset(torch.randn(count, 3, 128, 128), torch.randint(0, 100, (count,)))
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)

    trainer = L.Trainer(accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Classifier(), loader)
    print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main()
