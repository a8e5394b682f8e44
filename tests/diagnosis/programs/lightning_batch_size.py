# cause: batch_too_large
# from: common
# what: a ResNet-50 trained in float32 with 192 images of 256 x 256 in a batch
import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet50


class Images(Dataset):
    def __len__(self):
        return 384

    def __getitem__(self, index):
        return torch.rand(3, 256, 256), index % 100


class ImageClassifier(L.LightningModule):
    def __init__(self, classes=100):
        super().__init__()
        self.net = resnet50(num_classes=classes)

    def training_step(self, batch, index):
        images, labels = batch
        loss = F.cross_entropy(self.net(images), labels)  #?
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


def main():
    L.seed_everything(7)
    loader = DataLoader(Images(), batch_size=192, shuffle=True)  #? #! loader = DataLoader(Images(), batch_size=32, shuffle=True)
    trainer = L.Trainer(accelerator="gpu", devices=1, max_epochs=1, limit_train_batches=2, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(ImageClassifier(), loader)


if __name__ == "__main__":
    main()
