# cause: graph_kept
# from: google/brax#152
# what: backward retains the discriminator's graph and the list of losses for the plot keeps it
import torch
import torch.nn as nn

nz, ngf, ndf, image_size, batch_size = 128, 96, 96, 128, 64
device = "cuda:0"


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        layers, channels = [nn.ConvTranspose2d(nz, ngf * 16, 4, 1, 0), nn.ReLU(True)], ngf * 16
        for _ in range(4):
            layers += [nn.ConvTranspose2d(channels, channels // 2, 4, 2, 1, bias=False), nn.BatchNorm2d(channels // 2), nn.ReLU(True)]
            channels //= 2
        self.main = nn.Sequential(*layers, nn.ConvTranspose2d(channels, 3, 4, 2, 1), nn.Tanh())

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        layers, channels = [nn.Conv2d(3, ndf, 3, 1, 1), nn.LeakyReLU(0.2)], ndf
        for _ in range(4):
            layers += [nn.Conv2d(channels, channels * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(channels * 2), nn.LeakyReLU(0.2)]
            channels *= 2
        self.main = nn.Sequential(*layers, nn.Conv2d(channels, 1, 8))

    def forward(self, x):
        return self.main(x).view(-1)


netG, netD = Generator().to(device), Discriminator().to(device)
optG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
optD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(batch_size, device=device), torch.zeros(batch_size, device=device)
G_losses, D_losses = [], []

for i in range(16):
    real = torch.rand(batch_size, 3, image_size, image_size, device=device)
    fake = netG(torch.randn(batch_size, nz, 1, 1, device=device))

    netD.zero_grad()
    errD = bce(netD(real), ones) + bce(netD(fake.detach()), zeros)
    errD.backward(retain_graph=True)  #? #! errD.backward()
    optD.step()

    netG.zero_grad()
    errG = bce(netD(fake), ones)
    errG.backward()
    optG.step()

    G_losses.append(errG.item())
    D_losses.append(errD)  #? #! D_losses.append(errD.item())
    if i % 5 == 0:
        print("[%d] Loss_G: %.4f" % (i, G_losses[-1]))
