"""Train GPT-2 (124 million parameters) from scratch on random tokens.

Needs torch and nothing else. In float32, the default batch of 16 sequences of 1024 tokens does
not fit on a GPU of 16 GB such as a T4; --batch-size 8 does.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, BLOCK, LAYERS, HEADS, DIM = 50257, 1024, 12, 12, 768  # GPT-2 small


class Layer(nn.Module):
    """One transformer layer: causal self-attention, then an MLP, each added to the residual stream."""

    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.norm2 = nn.LayerNorm(DIM)
        self.fc = nn.Linear(DIM, 4 * DIM)
        self.out = nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        batch, length, _ = x.shape
        # Queries, keys and values: (batch, heads, length, head size) each.
        q, k, v = self.qkv(self.norm1(x)).split(DIM, dim=-1)
        q, k, v = (t.view(batch, length, HEADS, DIM // HEADS).transpose(1, 2) for t in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, length, DIM))
        return x + self.out(F.gelu(self.fc(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, DIM)
        self.positions = nn.Embedding(BLOCK, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        self.head.weight = self.tokens.weight  # one matrix reads tokens in and writes them out
        self.apply(self.init)

    @staticmethod
    def init(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.size(1), device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser(description="Train GPT-2 (124M) on random tokens.")
    parser.add_argument("--batch-size", type=int, default=16, help="sequences of 1024 tokens in a step")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = GPT2().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")

    for step in range(args.steps):
        # Random tokens in place of a dataset: the model is to predict each next token.
        ids = torch.randint(VOCAB, (args.batch_size, BLOCK + 1), device="cuda")
        inputs, targets = ids[:, :-1], ids[:, 1:]

        logits = model(inputs)  # (batch, length, vocabulary): 3.3 GB at a batch of 16
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}")

    print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main()
