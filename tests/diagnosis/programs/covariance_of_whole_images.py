# cause: one_temporary
# from: common
# what: the covariance of 49152 pixel values is a matrix of 9 GiB, and the regularised copy needs as much again
import torch


def centred(images):
    flat = images.flatten(1)
    return flat - flat.mean(0)


def principal_directions(images, count):
    x = centred(images)
    covariance = x.T @ x / (len(x) - 1)  #? #! covariance = x @ x.T / (len(x) - 1)
    covariance = covariance + 1e-5 * torch.eye(len(covariance), device=x.device)  #?
    directions = covariance[:, :count]
    for _ in range(3):
        directions = covariance @ directions
        directions = directions / directions.norm(dim=0, keepdim=True)
    return directions


images = torch.rand(2000, 3, 128, 128, device="cuda")
with torch.no_grad():
    directions = principal_directions(images, 64)  #?
print(directions.shape)
