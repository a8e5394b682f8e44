# cause: no_grad_missing
# from: KupynOrest/DeblurGAN#77
# what: the target branches of a perceptual loss run with gradients through a VGG that is not frozen
import torch
from torch import nn
from torchvision.models import vgg16


class PerceptualLoss(nn.Module):
    def __init__(self, last_layer=23):
        super().__init__()
        self.vgg = vgg16().features[:last_layer].eval()
        #! self.vgg.requires_grad_(False)
        self.distance = nn.L1Loss()

    def forward(self, restored, sharp, reference):
        features = self.vgg(restored)
        sharp_features = self.vgg(sharp)  #? #! with torch.no_grad(): sharp_features = self.vgg(sharp)
        reference_features = self.vgg(reference)  #? #! with torch.no_grad(): reference_features = self.vgg(reference)
        style = self.distance(features.mean(dim=(2, 3)), reference_features.mean(dim=(2, 3)))
        return self.distance(features, sharp_features) + 0.1 * style


def deblur_net(width=32):
    return nn.Sequential(
        nn.Conv2d(3, width, 7, stride=2, padding=3),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, 12, 3, padding=1),
        nn.PixelShuffle(2),
    )


def main():
    net = deblur_net().cuda()
    perceptual = PerceptualLoss().cuda()
    pixel = nn.MSELoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    for step in range(10):
        sharp = torch.rand(56, 3, 256, 256, device="cuda")
        reference = torch.rand(56, 3, 256, 256, device="cuda")
        blurred = nn.functional.avg_pool2d(sharp, 5, stride=1, padding=2)
        restored = net(blurred)
        loss = pixel(restored, sharp) + 0.1 * perceptual(restored, sharp, reference)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


main()
