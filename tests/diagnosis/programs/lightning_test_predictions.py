# cause: tensors_kept
# from: Lightning-AI/pytorch-lightning#1344
# what: test_step keeps the probabilities of all images on the GPU
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    def __len__(self):
        return 1120

    def __getitem__(self, index):
        return torch.rand(3, 160, 160)


class Parser(L.LightningModule):
    def __init__(self, classes=150):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(),
                                      nn.Conv2d(48, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU())
        self.head = nn.Conv2d(48, classes, 1)
        self.predictions = []

    def forward(self, images):
        return self.head(self.backbone(images))

    def test_step(self, images, index):
        probabilities = self(images).softmax(dim=1)  #?
        self.predictions.append(probabilities)  #? #! self.predictions.append(probabilities.argmax(dim=1).to(torch.uint8).cpu())

    def on_test_epoch_end(self):
        print("batches predicted:", len(self.predictions))
        self.predictions.clear()


def main():
    trainer = L.Trainer(accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.test(Parser(), DataLoader(Photos(), batch_size=40))


if __name__ == "__main__":
    main()
