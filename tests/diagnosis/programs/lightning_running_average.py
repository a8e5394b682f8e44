# cause: graph_kept
# from: BatsResearch/labelmodels#4
# what: a running average on the module is made from a tensor that has a graph
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Recommender(L.LightningModule):
    def __init__(self, items=60000, width=192):
        super().__init__()
        self.embedding = nn.Embedding(items, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.output = nn.Linear(width, items)
        self.average = 0.0

    def training_step(self, batch, index):
        history, target = batch
        states, _ = self.encoder(self.embedding(history))
        scores = self.output(states[:, -1])
        loss = F.cross_entropy(scores, target, label_smoothing=0.05)
        surprise = F.cross_entropy(scores, target)  #?
        self.average = 0.98 * self.average + 0.02 * surprise  #? #! self.average = 0.98 * self.average + 0.02 * surprise.detach()
        self.log("surprise", self.average, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    sessions = torch.randint(0, 60000, (60000, 20))
    data = TensorDataset(sessions, torch.randint(0, 60000, (60000,)))
    trainer = L.Trainer(accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Recommender(), DataLoader(data, batch_size=3000, shuffle=True))


if __name__ == "__main__":
    main()
