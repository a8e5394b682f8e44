# cause: tensors_kept
# from: facebookresearch/pytext#204
# what: a deep copy of the state_dict is kept on the GPU after every epoch
import copy
from collections import deque

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Ranker(L.LightningModule):
    def __init__(self, words=150000, width=1024):
        super().__init__()
        self.words = nn.Embedding(words, width, device="cuda")
        self.mix = nn.Sequential(nn.Linear(width, 4096), nn.ReLU(), nn.Linear(4096, 1))
        self.snapshots = []  #! self.snapshots = deque(maxlen=2)

    def training_step(self, batch, index):
        words, score = batch
        return F.mse_loss(self.mix(self.words(words).mean(dim=1)).squeeze(1), score)

    def on_train_epoch_end(self):
        self.snapshots.append(copy.deepcopy(self.state_dict()))  #?

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main():
    data = TensorDataset(torch.randint(0, 150000, (512, 32)), torch.rand(512))
    trainer = L.Trainer(accelerator="gpu", devices=1, max_epochs=30, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    model = Ranker()
    trainer.fit(model, DataLoader(data, batch_size=256))
    print("snapshots for averaging:", len(model.snapshots))


if __name__ == "__main__":
    main()
