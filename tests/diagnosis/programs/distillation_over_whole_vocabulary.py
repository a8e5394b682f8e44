# cause: logits
# from: NVIDIA-NeMo/Automodel#3907
# what: teacher and student probabilities over 151936 words are held at once for the distillation loss
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    def __init__(self, vocabulary, width, layers):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.body = nn.ModuleList(nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.body:
            x = layer(x)
        return x


def distillation(student_head, teacher_head, student_state, teacher_state, temperature=2.0):
    with torch.no_grad():
        target = F.softmax(teacher_head(teacher_state) / temperature, dim=-1)  #?
    guess = F.log_softmax(student_head(student_state) / temperature, dim=-1)  #?
    return F.kl_div(guess, target, reduction="sum") * temperature**2  #?


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--length", type=int, default=1536)
    parser.add_argument("--parts", type=int, default=1)  #! parser.add_argument("--parts", type=int, default=16)
    args = parser.parse_args()
    with torch.device("cuda"):
        teacher = Model(args.vocabulary, 1024, 8).eval().requires_grad_(False)
        student = Model(args.vocabulary, 512, 4)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4)
    for step in range(3):
        tokens = torch.randint(0, args.vocabulary, (4, args.length), device="cuda")
        with torch.no_grad():
            hints = teacher(tokens).flatten(0, 1)
        states = student(tokens).flatten(0, 1)
        loss = 0
        for state, hint in zip(states.chunk(args.parts), hints.chunk(args.parts)):
            loss = loss + checkpoint(distillation, student.head, teacher.head, state, hint, use_reentrant=False)  #?
        optimizer.zero_grad()
        (loss / tokens.numel()).backward()  #?
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    main()
