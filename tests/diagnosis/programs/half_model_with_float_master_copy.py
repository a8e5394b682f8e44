# cause: static_state
# from: common
# what: half-precision weights with float32 master weights, master gradients and Adam moments: 20 bytes for each parameter
import torch
import torch.nn as nn


def build(width=2560, layers=20):
    with torch.device("cuda"):
        layer = lambda: nn.TransformerEncoderLayer(width, 20, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        return nn.Sequential(*(layer() for _ in range(layers))).half()  #?


class MasterWeights:
    def __init__(self, parameters, lr):
        self.parameters = parameters
        self.masters = [p.detach().float().requires_grad_() for p in parameters]  #?
        self.optimizer = torch.optim.Adam(self.masters, lr=lr)  #?

    def step(self, scale):
        for p, master in zip(self.parameters, self.masters):
            master.grad = p.grad.float() / scale  #?
        self.optimizer.step()  #?
        for p, master in zip(self.parameters, self.masters):
            p.data.copy_(master)
            p.grad = master.grad = None


def trained_part(model):
    return model  #! return model[-2:]


model = build().requires_grad_(False)
part = trained_part(model).requires_grad_(True)
optimizer = MasterWeights(list(part.parameters()), lr=1e-5)
scale = 1024.0
for step in range(4):
    x = torch.randn(1, 128, 2560, device="cuda", dtype=torch.half)
    target = torch.randn(1, 128, 2560, device="cuda", dtype=torch.half)
    loss = (model(x) - target).float().pow(2).mean()
    (loss * scale).backward()
    optimizer.step(scale)
    print(step, float(loss))
