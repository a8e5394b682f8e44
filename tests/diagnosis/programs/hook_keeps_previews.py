# cause: graph_kept
# from: utkuozbulak/pytorch-cnn-visualizations#53
# what: a forward hook keeps the outputs of a preview head that no loss uses
import torch
from torch import nn
from torchvision.models import resnet18


class WithPreview(nn.Module):
    def __init__(self):
        super().__init__()
        net = resnet18(num_classes=10)
        self.stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
        self.body = nn.Sequential(net.layer1, net.layer2, net.layer3, net.layer4)
        self.preview = nn.Sequential(
            nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 3, 1), nn.AdaptiveAvgPool2d(32),
        )
        self.classify = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))

    def forward(self, x):
        x = self.stem(x)
        self.preview(x)
        return self.classify(self.body(x))


class PreviewRecorder:
    def __init__(self, module):
        self.previews = []
        self.handle = module.register_forward_hook(self.record)

    def record(self, module, inputs, output):
        self.previews.append(output)  #? #! self.previews.append(output.detach().cpu())


model = WithPreview().cuda()
recorder = PreviewRecorder(model.preview)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    images = torch.randn(128, 3, 256, 256, device="cuda")
    labels = torch.randint(0, 10, (128,), device="cuda")
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("previews", len(recorder.previews))
recorder.handle.remove()
