# cause: optimizer_temporaries
# from: pytorch/pytorch#97712
# what: the foreach step of Adam makes temporaries as large as all weights together, beside weights, gradients and moments that fit
import torch
import torch.nn as nn


class Mixer(nn.Module):
    def __init__(self, width=2176, depth=21):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(depth)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def make_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=1e-4)  #? #! return torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)


def train(steps=4):
    with torch.device("cuda"):
        model = Mixer()
    optimizer = make_optimizer(model)  #?
    for step in range(steps):
        x = torch.randn(64, 2176, device="cuda")
        loss = nn.functional.smooth_l1_loss(model(x), x)
        loss.backward()
        optimizer.step()  #?
        optimizer.zero_grad()
        print(step, loss.item())


train()
