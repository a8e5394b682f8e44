# cause: one_temporary
# from: pytorch/pytorch#57720
# what: torch.cdist of 70000 points against themselves writes out all distances at once
import torch


def nearest_neighbours(points, count):
    distances = torch.cdist(points, points)  #? #! return torch.cat([torch.cdist(part, points).topk(count + 1, largest=False).indices[:, 1:] for part in points.split(2048)])
    return distances.topk(count + 1, largest=False).indices[:, 1:]  #?


def chamfer_features(points, neighbours):
    return (points[neighbours] - points[:, None]).norm(dim=-1).mean(1)


def load_cloud(number, size=70_000):
    generator = torch.Generator(device="cuda").manual_seed(number)
    return torch.rand(size, 3, device="cuda", generator=generator)


with torch.no_grad():
    for number in range(3):
        cloud = load_cloud(number)
        neighbours = nearest_neighbours(cloud, 16)  #?
        print(number, chamfer_features(cloud, neighbours).mean().item())
