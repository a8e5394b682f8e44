# cause: none
# from: common
# what: a gradient penalty with create_graph, several critic steps, fixed noise and sample grids kept
import torch
from torch import autograd, nn, optim

Z = 100


def critic():
    def down(i, o):
        return [nn.Conv2d(i, o, 5, 2, 2), nn.LeakyReLU(0.2)]
    return nn.Sequential(*down(3, 64), *down(64, 128), *down(128, 256), *down(256, 512), nn.Flatten(), nn.Linear(512 * 16, 1))


def generator():
    def up(i, o):
        return [nn.ConvTranspose2d(i, o, 4, 2, 1), nn.BatchNorm2d(o), nn.ReLU()]
    return nn.Sequential(nn.ConvTranspose2d(Z, 512, 4), nn.ReLU(), *up(512, 256), *up(256, 128), *up(128, 64),
                         nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())


def penalty(d, real, fake):
    mix = torch.rand(len(real), 1, 1, 1, device=real.device)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    grad = autograd.grad(d(between).sum(), between, create_graph=True, retain_graph=True)[0]
    return ((grad.flatten(1).norm(2, dim=1) - 1) ** 2).mean()


d, g = critic().cuda(), generator().cuda()
opt_d, opt_g = optim.Adam(d.parameters(), 1e-4, (0.0, 0.9)), optim.Adam(g.parameters(), 1e-4, (0.0, 0.9))
fixed = torch.randn(64, Z, 1, 1, device="cuda")
grids, log = [], {"d": [], "g": []}
for it in range(5):
    for _ in range(3):
        real = torch.rand(512, 3, 64, 64, device="cuda")
        with torch.no_grad():
            fake = g(torch.randn(512, Z, 1, 1, device="cuda"))
        loss_d = d(fake).mean() - d(real).mean() + 10 * penalty(d, real, fake)
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
    loss_g = -d(g(torch.randn(512, Z, 1, 1, device="cuda"))).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    log["d"].append(loss_d.item())
    log["g"].append(loss_g.item())
    with torch.no_grad():
        grids.append(g(fixed))
print(len(grids), log["g"][-1])
