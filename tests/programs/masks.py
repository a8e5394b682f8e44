"""Variable-length sequences: padding is indexed away with x[mask], lengths are read back for packing."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

PAD = 0


class Tagger(nn.Module):
    def __init__(self, vocab=30000, dim=512, tags=50):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
        self.rnn = nn.GRU(dim, dim // 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(dim, tags)

    def forward(self, ids):
        mask = ids != PAD
        x = self.embed(ids)
        # The MLP only sees the real tokens.
        x = x.masked_scatter(mask.unsqueeze(-1), self.mlp(x[mask]))
        lengths = mask.sum(dim=1).tolist()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        x, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=ids.size(1))
        return self.out(x), mask


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

torch.manual_seed(0)
model = Tagger().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for step in range(args.steps):
    sentences = [torch.randint(1, 30000, (n,)) for n in torch.randint(20, 257, (args.batch_size,)).tolist()]
    ids = pad_sequence(sentences, batch_first=True, padding_value=PAD).cuda()
    tags = torch.randint(0, 50, ids.shape, device="cuda")

    logits, mask = model(ids)
    loss = F.cross_entropy(logits[mask], tags[mask])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    right = (logits[mask].argmax(-1) == tags[mask]).sum().item()
    print(f"step {step} loss {loss.item():.3f} accuracy {right / max(1, mask.sum().item()):.3f}")

print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")
