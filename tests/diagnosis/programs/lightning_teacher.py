# cause: no_grad_missing
# from: lightly-ai/lightly-train#434
# what: the teacher of a distillation runs with gradients
import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18, wide_resnet50_2


class Pictures(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        return torch.rand(3, 224, 224), index % 200


class Distiller(L.LightningModule):
    def __init__(self, classes=200, temperature=4.0):
        super().__init__()
        self.temperature = temperature
        self.student = resnet18(num_classes=classes)
        self.teacher = wide_resnet50_2(num_classes=classes).eval()

    #! @torch.no_grad()
    def soft_targets(self, images):
        return F.softmax(self.teacher(images) / self.temperature, dim=1)  #?

    def training_step(self, batch, index):
        images, labels = batch
        scores = self.student(images)
        targets = self.soft_targets(images)  #?
        soft = F.kl_div(F.log_softmax(scores / self.temperature, dim=1), targets, reduction="batchmean")
        return F.cross_entropy(scores, labels) + self.temperature**2 * soft

    def configure_optimizers(self):
        return torch.optim.SGD(self.student.parameters(), lr=0.05, momentum=0.9)


def main():
    trainer = L.Trainer(accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Distiller(), DataLoader(Pictures(), batch_size=128))


if __name__ == "__main__":
    main()
