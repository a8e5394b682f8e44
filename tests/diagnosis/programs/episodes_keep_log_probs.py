# cause: graph_kept
# from: pytorch/pytorch#5353
# what: the log probabilities of all episodes are kept, though only the good episodes are learned from
import random

import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self, actions=6):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(64 * 49, 512), nn.ReLU(), nn.Linear(512, actions),
        )

    def forward(self, frames):
        return self.body(frames).log_softmax(dim=-1)


class Agent:
    def __init__(self):
        self.policy = Policy().cuda()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-4)
        self.episodes = []

    def play(self, parts=3, frames=4096):
        chosen = []
        for _ in range(parts):
            observed = torch.rand(frames, 4, 84, 84, device="cuda")
            log_probs = self.policy(observed)  #?
            actions = torch.randint(0, 6, (frames, 1), device="cuda")
            chosen.append(log_probs.gather(1, actions))
        return torch.cat(chosen), random.gauss(0.0, 1.0)

    def learn(self, log_probs, reward):
        baseline = sum(r for _, r in self.episodes) / max(1, len(self.episodes))
        self.episodes.append((log_probs, reward))  #? #! self.episodes.append((log_probs.detach(), reward))
        if reward <= baseline:
            return
        self.optimizer.zero_grad()
        (-(reward - baseline) * log_probs.mean()).backward()
        self.optimizer.step()


random.seed(3)
agent = Agent()
for episode in range(30):
    agent.learn(*agent.play())
print("episodes", len(agent.episodes))
