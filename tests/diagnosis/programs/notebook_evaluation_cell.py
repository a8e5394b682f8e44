# cause: no_grad_missing
# kind: notebook
# from: huggingface/transformers#24406
# what: the evaluation cell sums the losses with gradients on
# %%
import torch
import torch.nn.functional as F
from torchvision.models import efficientnet_b0

device = "cuda"
net = efficientnet_b0(num_classes=50).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
# %%
def random_batch(size):
    return torch.rand(size, 3, 224, 224, device=device), torch.randint(0, 50, (size,), device=device)
# %%
for step in range(3):
    x, y = random_batch(16)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("trained", step + 1, "steps")
# %%
#! @torch.no_grad()
def evaluate(batches):
    net.eval()
    total = 0.0
    for _ in range(batches):
        x, y = random_batch(32)
        scores = net(x)  #?
        total = total + F.cross_entropy(scores, y)  #?
    return total / batches
# %%
print("evaluation loss", float(evaluate(20)))
