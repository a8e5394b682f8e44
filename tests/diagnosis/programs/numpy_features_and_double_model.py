# cause: float64
# from: common
# what: features come from NumPy as float64 and the model is made double to match them
import numpy as np
import torch
import torch.nn as nn


def load_features(rows=32768, columns=128):
    generator = np.random.default_rng(0)
    features = generator.random((rows, columns))
    target = features[:, :1] * 2.0
    return features, target


def make_model(columns):
    layers, width = [], columns
    for _ in range(7):
        layers += [nn.Linear(width, 4096), nn.GELU()]
        width = 4096
    return nn.Sequential(*layers, nn.Linear(width, 1))


features, target = load_features()
x = torch.from_numpy(features).cuda()  #? #! x = torch.from_numpy(features).float().cuda()
y = torch.from_numpy(target).cuda()  #? #! y = torch.from_numpy(target).float().cuda()
model = make_model(features.shape[1]).double().cuda()  #? #! model = make_model(features.shape[1]).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for epoch in range(3):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)  #?
    loss.backward()
    optimizer.step()
    print(epoch, loss.item())
