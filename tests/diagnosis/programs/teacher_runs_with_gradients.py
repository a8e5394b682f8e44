# cause: no_grad_missing
# from: clovaai/overhaul-distillation#34
# what: the teacher of a distillation runs with gradients
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torchvision.models import resnet18, resnet152


@dataclass
class Config:
    batch_size: int = 80
    image_size: int = 224
    steps: int = 8
    temperature: float = 4.0
    alpha: float = 0.9
    lr: float = 0.05


def distillation_loss(student_logits, teacher_logits, labels, cfg):
    t = cfg.temperature
    soft = F.kl_div(
        F.log_softmax(student_logits / t, dim=1),
        F.softmax(teacher_logits / t, dim=1),
        reduction="batchmean",
    )
    hard = F.cross_entropy(student_logits, labels)
    return cfg.alpha * t * t * soft + (1 - cfg.alpha) * hard


def train(cfg):
    teacher = resnet152().cuda().eval()
    student = resnet18().cuda().train()
    optimizer = torch.optim.SGD(student.parameters(), lr=cfg.lr, momentum=0.9)
    for step in range(cfg.steps):
        images = torch.randn(cfg.batch_size, 3, cfg.image_size, cfg.image_size, device="cuda")
        labels = torch.randint(0, 1000, (cfg.batch_size,), device="cuda")
        student_logits = student(images)
        teacher_logits = teacher(images)  #? #! with torch.no_grad(): teacher_logits = teacher(images)
        loss = distillation_loss(student_logits, teacher_logits, labels, cfg)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    train(Config())
