# cause: none
# from: common
# what: an attack on a model in eval mode needs gradients, and collects what it makes
import torch
import torch.nn.functional as F
from torchvision.models import densenet121

EPS, ALPHA, STEPS = 8 / 255, 2 / 255, 4


def pgd(model, x, y):
    adv = x + torch.empty_like(x).uniform_(-EPS, EPS)
    for _ in range(STEPS):
        adv.requires_grad_(True)
        loss = F.cross_entropy(model(adv), y)
        grad, = torch.autograd.grad(loss, adv)
        adv = adv.detach() + ALPHA * grad.sign()
        adv = torch.min(torch.max(adv, x - EPS), x + EPS).clamp(0, 1)
    return adv.detach()


model = densenet121(weights=None).cuda().eval()
attacked, robust = [], 0
for i in range(3):
    x = torch.rand(48, 3, 224, 224, device="cuda")
    y = torch.randint(0, 1000, (48,), device="cuda")
    adv = pgd(model, x, y)
    with torch.no_grad():
        robust += (model(adv).argmax(1) == y).sum()
    attacked.append(adv[:4].cpu())
print(int(robust), torch.cat(attacked).shape)
