# cause: none
# from: common
# what: lists on the module that are detached, bounded, or cleared
from collections import deque

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tagger(L.LightningModule):
    def __init__(self, words=30000, width=512, tags=400):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.encoder = nn.LSTM(width, width, num_layers=2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(2 * width, tags)
        self.losses = []
        self.recent_scores = deque(maxlen=4)
        self.validation_scores = []

    def forward(self, words):
        return self.tags(self.encoder(self.words(words))[0])

    def training_step(self, batch, index):
        words, tags = batch
        scores = self(words)
        loss = F.cross_entropy(scores.flatten(0, 1), tags.flatten())
        self.losses.append(loss.detach())
        self.recent_scores.append(scores.detach())
        return loss

    def validation_step(self, batch, index):
        self.validation_scores.append(self(batch[0]))

    def on_validation_epoch_end(self):
        print("validated", torch.cat(self.validation_scores).shape)
        self.validation_scores.clear()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    data = TensorDataset(torch.randint(0, 30000, (4096, 64)), torch.randint(0, 400, (4096, 64)))
    trainer = L.Trainer(accelerator="gpu", devices=1, max_epochs=2, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
    trainer.fit(Tagger(), DataLoader(data, batch_size=512), DataLoader(data, batch_size=512))


if __name__ == "__main__":
    main()
