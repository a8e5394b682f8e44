# cause: none
# kind: notebook
# from: common
# what: two models, a history and predictions across cells, all of them as they should be
# %%
import torch
import torch.nn.functional as F
from torchvision.models import resnet18, resnet101

teacher = resnet101(num_classes=100).cuda().eval().requires_grad_(False)
student = resnet18(num_classes=100).cuda()
# %%
def batch(size=64):
    return torch.rand(size, 3, 224, 224, device="cuda")


optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
history, predictions = [], []
# %%
for step in range(6):
    images = batch()
    with torch.no_grad():
        targets = teacher(images).softmax(dim=1)
    loss = F.cross_entropy(student(images), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
# %%
student.eval()
with torch.inference_mode():
    for _ in range(6):
        predictions.append(student(batch(128)))
print(len(history), torch.cat(predictions).shape)
