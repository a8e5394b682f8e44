# cause: graph_kept
# from: pdearena/pdearena#4
# what: a measure that is not part of the loss is kept with its graph in a list on the module
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slices(Dataset):
    def __len__(self):
        return 2048

    def __getitem__(self, index):
        return torch.rand(1, 192, 192), torch.randint(0, 48, (192, 192))


class Segmenter(L.LightningModule):
    def __init__(self, classes=48):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
                                 nn.Conv2d(32, classes, 1))
        self.step_outputs = []

    def dice(self, logits, labels):
        chance = logits.softmax(dim=1).gather(1, labels.unsqueeze(1))  #?
        return 1 - 2 * chance.sum() / (labels.numel() + chance.square().sum())

    def training_step(self, batch, index):
        images, labels = batch
        logits = self.net(images)
        loss = F.cross_entropy(logits, labels)
        dice = self.dice(logits, labels)  #?
        self.step_outputs.append({"loss": loss.detach(), "dice": dice})  #? #! self.step_outputs.append({"loss": loss.detach(), "dice": dice.detach()})
        return loss

    def on_train_epoch_end(self):
        print("mean dice", torch.stack([output["dice"] for output in self.step_outputs]).mean().item())
        self.step_outputs.clear()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    trainer = L.Trainer(accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Segmenter(), DataLoader(Slices(), batch_size=64))


if __name__ == "__main__":
    main()
