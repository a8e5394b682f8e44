# cause: no_grad_missing
# from: common
# what: the teacher of a distillation is in eval mode and still builds its graph
import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

TEMPERATURE = 4.0
ALPHA = 0.7


def make(layers, width, heads):
    config = BertConfig(num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
                        intermediate_size=4 * width, num_labels=20)
    with torch.device("cuda"):
        return BertForSequenceClassification(config)


class Distiller(nn.Module):
    def __init__(self, teacher, student):
        super().__init__()
        self.teacher = teacher.eval()
        self.student = student

    #! @torch.no_grad()
    def soft_targets(self, ids, mask):
        out = self.teacher(input_ids=ids, attention_mask=mask)  #?
        return F.softmax(out.logits / TEMPERATURE, dim=-1)

    def forward(self, ids, mask, labels):
        soft = self.soft_targets(ids, mask)  #?
        logits = self.student(input_ids=ids, attention_mask=mask).logits
        hard = F.cross_entropy(logits, labels)
        kd = F.kl_div(F.log_softmax(logits / TEMPERATURE, dim=-1), soft, reduction="batchmean")
        return ALPHA * kd * TEMPERATURE ** 2 + (1 - ALPHA) * hard


def main():
    distiller = Distiller(make(24, 1024, 16), make(4, 384, 6))
    optimizer = torch.optim.AdamW(distiller.student.parameters(), lr=5e-5)
    for step in range(4):
        ids = torch.randint(0, 30000, (24, 384), device="cuda")
        mask = torch.ones_like(ids)
        labels = torch.randint(0, 20, (24,), device="cuda")
        optimizer.zero_grad()
        loss = distiller(ids, mask, labels)
        loss.backward()
        optimizer.step()
        print(f"step {step}: {loss.item():.3f}")


main()
