# cause: tensors_kept
# from: recursionpharma/gflownet#130
# what: a replay buffer keeps float observations on the card
import random
from collections import deque

import torch
from torch import nn


class ReplayBuffer:
    def __init__(self, capacity):
        self.items = deque(maxlen=capacity)

    def push(self, observation, action, reward, following):
        self.items.append((observation, action, reward, following))  #?

    def sample(self):
        return random.choice(self.items)


def q_network(actions):
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 81, 512), nn.ReLU(), nn.Linear(512, actions),
    )


def update(online, target, optimizer, batch):
    observation, action, reward, following = batch
    with torch.no_grad():
        wanted = reward + 0.99 * target(following).max(dim=1).values
    value = online(observation).gather(1, action[:, None]).squeeze(1)
    loss = nn.functional.smooth_l1_loss(value, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def play(steps=80, environments=2048):
    online, target = q_network(6).cuda(), q_network(6).cuda()
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-4)
    memory = ReplayBuffer(capacity=1000)  #! memory = ReplayBuffer(capacity=8)
    observation = torch.rand(environments, 4, 84, 84, device="cuda")
    for step in range(steps):
        with torch.no_grad():
            action = online(observation).argmax(dim=1)
        following = torch.rand(environments, 4, 84, 84, device="cuda")  #?
        reward = torch.rand(environments, device="cuda")
        memory.push(observation, action, reward, following)  #?
        observation = following
        update(online, target, optimizer, memory.sample())


random.seed(0)
play()
