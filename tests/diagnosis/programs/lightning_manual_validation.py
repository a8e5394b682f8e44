# cause: no_grad_missing
# from: macrocosm-os/pretraining#104
# what: validation called by hand at the end of the epoch, where gradients are on
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.rand(2, 8192), index % 12


def block(inputs, outputs):
    return nn.Sequential(nn.Conv1d(inputs, outputs, 7, padding=3), nn.BatchNorm1d(outputs), nn.GELU())


class SignalClassifier(L.LightningModule):
    def __init__(self, validation_loader):
        super().__init__()
        self.validation_loader = validation_loader
        self.net = nn.Sequential(block(2, 64), block(64, 64), nn.MaxPool1d(4), block(64, 128), block(128, 128),
                                 nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(128, 12))

    def shared_step(self, batch):
        signals, labels = batch
        return F.cross_entropy(self.net(signals), labels)  #?

    def training_step(self, batch, index):
        return self.shared_step(batch)

    #! @torch.no_grad()
    def validate(self):
        self.net.eval()
        losses = []
        for signals, labels in self.validation_loader:
            losses.append(self.shared_step((signals.to(self.device), labels.to(self.device))))  #?
        self.net.train()
        return torch.stack(losses).mean()

    def on_train_epoch_end(self):
        print("validation loss", float(self.validate()))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4)


def main():
    trainer = L.Trainer(accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    model = SignalClassifier(DataLoader(Signals(2048), batch_size=128))
    trainer.fit(model, DataLoader(Signals(384), batch_size=128, shuffle=True))


if __name__ == "__main__":
    main()
