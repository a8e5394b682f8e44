# cause: backward_once
# from: speechLabBcCuny/onssen#5
# what: the losses of all utterances of a batch are listed, the mean is taken and backward runs once
import argparse

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, features=80, width=512, labels=42):
        super().__init__()
        self.rnn = nn.LSTM(features, width, num_layers=3, bidirectional=True, batch_first=True)
        self.norm = nn.LayerNorm(2 * width)
        self.out = nn.Linear(2 * width, labels)

    def forward(self, frames):
        hidden, _ = self.rnn(frames)
        return self.out(self.norm(hidden))


def train_batch(model, optimizer, utterances, frames):
    losses = []
    optimizer.zero_grad()
    for _ in range(utterances):
        audio = torch.randn(8, frames, 80, device="cuda")
        labels = torch.randint(0, 42, (8, frames), device="cuda")
        scores = model(audio)  #?
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
        losses.append(loss)  #? #! losses.append(loss.detach())
        #! (loss / utterances).backward()
    mean = torch.stack(losses).mean()
    mean.backward()  #? #!-
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    return mean.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--utterances", type=int, default=48)
    parser.add_argument("--frames", type=int, default=1600)
    args = parser.parse_args()
    model = Tagger().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(2):
        print(f"{step}: {train_batch(model, optimizer, args.utterances, args.frames):.3f}")


if __name__ == "__main__":
    main()
