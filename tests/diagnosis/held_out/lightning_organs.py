# cause: graph_kept
# from: pnnl/neuromancer#292
# what: a training metric is collected over the epoch together with its branch of the graph
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        return torch.zeros(1, 24, 24, 24), index % 3


def block(cin, cout):
    return nn.Sequential(nn.Conv3d(cin, cout, 3, padding=1), nn.InstanceNorm3d(cout), nn.LeakyReLU(0.1, inplace=True))


class OrganNet(LightningModule):
    def __init__(self, organs=12):
        super().__init__()
        self.organs = organs
        self.body = nn.Sequential(block(1, 16), block(16, 16), nn.Conv3d(16, organs, 1))
        self.dice_scores = []

    def soft_dice(self, logits, masks):
        probs = logits.sigmoid()  #?
        overlap = (probs * masks).flatten(2).sum(-1)  #?
        return (2 * overlap + 1) / (probs.flatten(2).sum(-1) + masks.flatten(2).sum(-1) + 1)

    def training_step(self, batch, index):
        small, _ = batch
        scans = F.interpolate(small, size=(128, 128, 128), mode="trilinear")
        masks = torch.zeros(len(scans), self.organs, *scans.shape[2:], device=self.device)
        logits = self.body(scans)
        loss = F.binary_cross_entropy_with_logits(logits, masks)
        self.dice_scores.append(self.soft_dice(logits, masks).mean(0))  #? #! self.dice_scores.append(self.soft_dice(logits.detach(), masks).mean(0))
        self.log("train/loss", loss)
        return loss

    def on_train_epoch_end(self):
        self.log("train/dice", torch.stack(self.dice_scores).mean())
        self.dice_scores.clear()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-4)


if __name__ == "__main__":
    trainer = Trainer(max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(OrganNet(), DataLoader(Volumes(), batch_size=4))
