"""The networks that experiments train: small, built by hand, on random data. Sizes are chosen so that every experiment fits a card of 8 GiB."""

import torch
from torch import nn
from torch.nn import functional


def mlp(width=1024, depth=12, inputs=256, outputs=64, between=nn.GELU):
    """So many layers of one width; each activation is rows × width × 4 bytes."""
    layers = [nn.Linear(inputs, width), between()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), between()]
    return nn.Sequential(*layers, nn.Linear(width, outputs)).cuda()


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        rows, length, width = x.shape
        parts = self.query_key_value(self.before(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.feed(self.after(x))


class GPT(nn.Module):
    """A decoder of six blocks: 23 million parameters, as people write it."""

    def __init__(self, vocabulary=4096, width=512, heads=8, blocks=6, longest=512):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.checkpointing = False

    def forward(self, ids):
        from torch.utils.checkpoint import checkpoint

        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(self.norm(x))


def gpt(**shape):
    torch.manual_seed(0)
    with torch.device("cuda"):
        return GPT(**shape)


def tokens(rows, length=256, vocabulary=4096):
    return torch.randint(vocabulary, (rows, length), device="cuda")


def next_token_loss(model, ids):
    logits = model(ids)
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def vectors(rows, inputs=256, outputs=64):
    return torch.randn(rows, inputs, device="cuda"), torch.randint(outputs, (rows,), device="cuda")


def class_loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


def step(model, optimizer, loss_of, batch, set_to_none=True):
    optimizer.zero_grad(set_to_none=set_to_none)
    loss_of(model, batch).backward()
    optimizer.step()


def weights(model):
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
