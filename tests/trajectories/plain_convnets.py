"""Methods of convolutional networks, written again from their papers in plain loops."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.data.batch import Batch
from raysl.nn.drop_path import keyed_draws
from raysl.schedule import Step
from tests.trajectories.lightly_peers import by_size, sizes
from tests.trajectories.ours import Course, Peer
from tests.trajectories.plain import (
    Plain,
    all_views,
    balanced,
    class_loss,
    cosine_course,
    cross_entropy,
    follow,
    log_softmax,
    mean,
    push,
    remember,
    two,
    unit,
    units,
)


class NNCLR(Plain):
    """Dwibedi et al. 2021, eq. 3 and 4."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Each neighbour picks its image's prediction from the other view."""
        z = [self.embed(view) for view in two(batch)]
        p = [self.net.predictor(rows) for rows in z]
        self.newest = units(z[0].detach())
        return mean(self._directed(z[one].detach(), p[other]) for one, other in ((0, 1), (1, 0)))

    def after_update(self, batch: Batch, step: Step) -> None:
        """First views enter the support set."""
        push(self.net.queue, self.newest)

    def _directed(self, z: Tensor, p: Tensor) -> Tensor:
        terms = []
        for image, row in enumerate(z):
            cosines = torch.stack([unit(row) @ key for key in self.net.queue.keys])
            neighbour = self.net.queue.keys[cosines.argmax()]
            terms.append(-log_softmax(units(p) @ neighbour / self.config.temperature)[image])
        return mean(terms)


class LeJEPA(Plain):
    """Balestriero and LeCun 2025, algorithms 1 and 2; the directions are raysl's, whose numbers have tests of their
    own."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Agreement with the mean of the large views, and normality along each direction."""
        num, views = batch.views["global"].shape[:2]
        z = self.embed(all_views(batch)).view(num, views, -1)
        centres = [mean(rows) for rows in z]
        invariance = mean((z[n, v] - centres[n]).square().mean() for n in range(num) for v in range(views))
        width, num_slices = z.shape[2], self.config.num_slices
        drawn = batch.shared("slices").normals_on(z.device, width * num_slices).view(width, num_slices)
        statistics = [self._statistic(z[:, v] @ unit(column)) for v in range(views) for column in drawn.T]
        weight = self.config.sigreg
        return (1 - weight) * invariance + weight * mean(statistics)

    def _statistic(self, x: Tensor) -> Tensor:
        """Of numbers [n]: n times the integral from -max_t to max_t, by trapezoids."""
        last = self.config.num_points - 1
        width = self.config.max_t / last
        total = torch.zeros((), dtype=x.dtype)
        for place in range(-last, last + 1):
            t = place * width
            normal = math.exp(-t * t / 2)
            distance = (mean((t * x).cos()) - normal) ** 2 + mean((t * x).sin()) ** 2
            total = total + distance * normal * width * (0.5 if abs(place) == last else 1.0)
        return len(x) * total


class VISReg(Plain):
    """Wu, Balestriero and Levine 2026, section 3, with the statistics of the authors' code; the directions are raysl's,
    whose numbers have tests of their own."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Agreement with the mean of the large views, and each view's means, deviations and sorted projections."""
        config, (num, views) = self.config, batch.views["global"].shape[:2]
        z = self.embed(all_views(batch)).view(num, views, -1)
        centres = [mean(rows) for rows in z]
        invariance = mean((z[n, v] - centres[n]).square().mean() for n in range(num) for v in range(views))
        width = z.shape[2]
        drawn = batch.shared("slices").normals_on(z.device, width * config.num_slices).view(width, config.num_slices)
        quantiles = [NormalDist().inv_cdf(n / (num + 1)) for n in range(1, num + 1)]
        terms = []
        for v in range(views):
            means = mean(z[:, v])
            stds = mean((row - means).square() for row in z[:, v]).sqrt() + config.eps
            normal = torch.stack([(row - means) / stds.detach() for row in z[:, v]])
            terms.append(config.centre * means.square().mean() + config.scale * (stds - 1).square().mean())
            for column in drawn.T:
                ordered = zip((normal @ unit(column)).sort().values, quantiles, strict=True)
                distance = mean((one - other).square() for one, other in ordered)
                terms[-1] = terms[-1] + config.shape * distance / config.num_slices
        return (1 - config.regularization) * invariance + config.regularization * mean(terms)


class NNBYOL(Plain):
    """Dwibedi et al. 2021, eq. 4, in Grill et al. 2020, eq. 1 and 2."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Each prediction goes to the neighbour of the target's projection of the other view."""
        views = two(batch)
        p = [self.net.predictor(self.embed(view)) for view in views]
        targets = [self.net.teacher(view) for view in views]
        self.newest = units(targets[0])
        terms = []
        for one, other in ((0, 1), (1, 0)):
            for image, row in enumerate(targets[other]):
                cosines = torch.stack([row @ key for key in self.net.queue.keys])
                neighbour = unit(self.net.queue.keys[cosines.argmax()])
                terms.append((unit(p[one][image]) - neighbour).square().sum())
        return 2 * mean(terms)

    def after_update(self, batch: Batch, step: Step) -> None:
        """The target follows, and its first views enter the support set."""
        share = cosine_course(step, self.config.momentum, self.config.final_momentum)
        follow(self.net.teacher, (self.net.backbone, self.net.projector), share)
        push(self.net.queue, self.newest)


class NNSiam(Plain):
    """Dwibedi et al. 2021, eq. 4, in Chen and He 2020, eq. 3."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Each prediction goes to the neighbour of the other view's projection."""
        z = [self.embed(view) for view in two(batch)]
        p = [self.net.predictor(rows) for rows in z]
        self.newest, terms = units(z[0].detach()), []
        for one, other in ((0, 1), (1, 0)):
            for image, row in enumerate(z[other].detach()):
                cosines = torch.stack([row @ key for key in self.net.queue.keys])
                terms.append(-unit(p[one][image]) @ unit(self.net.queue.keys[cosines.argmax()]))
        return mean(terms)

    def after_update(self, batch: Batch, step: Step) -> None:
        """First views enter the support set."""
        push(self.net.queue, self.newest)


class All4One(Plain):
    """Estepa et al. 2023, and solo-learn; self-attention is raysl's, which has tests of its own."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of neighbours, centroids and features, of both directions."""
        net, config = self.net, self.config
        views = two(batch)
        z, targets = [self.embed(view) for view in views], [units(net.teacher(view)) for view in views]
        p, q = [net.predictor(rows) for rows in z], [net.centroid_predictor(rows) for rows in z]
        near = [torch.stack([self._nearest(row) for row in rows]) for rows in targets]
        self.newest = targets[0]
        replaced = [torch.cat([own[:, None], rows[:, :-1]], dim=1) for own, rows in zip(q, near, strict=True)]
        sets = [rows + net.positions for image in zip(*near, *replaced, strict=True) for rows in image]
        with keyed_draws(batch):  # dropout is that of the image, and of the number of its set
            centroids = net.encoder(torch.stack(sets))[:, 0]
        whole, mixed = (centroids[0::4], centroids[1::4]), (centroids[2::4], centroids[3::4])
        terms = []
        for one, other in ((0, 1), (1, 0)):
            terms.append(self._picked(whole[one], mixed[other], config.centroid_temperature))
            terms.append(self._picked(near[one][:, 0], p[other], config.temperature))
        return mean(terms) * 2 + config.feature_weight * self._features(z, targets) / 2

    def after_update(self, batch: Batch, step: Step) -> None:
        """The teacher follows, and its first views enter the queue."""
        share = cosine_course(step, self.config.momentum, self.config.final_momentum)
        follow(self.net.teacher, (self.net.backbone, self.net.projector), share)
        push(self.net.queue, self.newest)

    def _nearest(self, row: Tensor) -> Tensor:
        cosines = torch.stack([row @ key for key in self.net.queue.keys])
        return self.net.queue.keys[cosines.argsort(descending=True)[: self.config.num_neighbors]]

    def _picked(self, rows: Tensor, others: Tensor, temperature: float) -> Tensor:
        scores = [units(others) @ unit(row) / temperature for row in rows]
        return mean(-log_softmax(row)[image] for image, row in enumerate(scores)) / 2

    def _features(self, z: list[Tensor], targets: list[Tensor]) -> Tensor:
        own, others = [], []
        for one, other in ((0, 1), (1, 0)):
            for i, column in enumerate(units(targets[one].T)):
                for j, row in enumerate(units(z[other].T)):
                    if i == j:
                        own.append((column @ row - 1).square())
                    else:
                        others.append((column @ row).square())
        return mean(own).sqrt() / 2 + mean(others).sqrt() / 2


class SSLEY(Plain):
    """Chapman et al. 2023, as the authors' code has it."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Covariances between views against the squares of those within."""
        first, second = (self.embed(view) for view in two(batch))
        rows = [(one - mean(first), other - mean(second)) for one, other in zip(first, second, strict=True)]
        between = sum(one @ other for one, other in rows) / (len(rows) - 1)
        within = sum(torch.outer(row, row) for pair in rows for row in pair) / (len(rows) - 1)
        return within.square().sum() - 4 * between


class DenseCL(Plain):
    """Wang et al. 2021, eq. 1 to 4; keys are normalised over the whole batch."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of images, and of places with the most similar ones."""
        net, (first, second) = self.net, two(batch)
        f, f_key = net.backbone.stages(first, [net.stage])[net.stage], None
        with torch.no_grad():
            backbone, projector = net.teacher.module
            f_key = backbone.stages(second, [net.stage])[net.stage]
            self.keys, k_places = projector(f_key.mean(dim=(2, 3))), net.dense_teacher.module(f_key).flatten(2)
            self.means = k_places.mean(dim=2)
        q, q_places = net.projector(f.mean(dim=(2, 3))), net.dense_projector(f).flatten(2)
        of_images, of_places = [], []
        for n in range(len(q)):
            of_images.append(self._picked(q[n], self.keys[n], net.queue.keys))
            where, there = units(f[n].detach().flatten(1).T), units(f_key[n].flatten(1).T)
            for place, row in enumerate(where):
                nearest = torch.stack([row @ other for other in there]).argmax()
                of_places.append(self._picked(q_places[n, :, place], k_places[n, :, nearest], net.dense_queue.keys))
        share = self.config.dense_share
        return (1 - share) * mean(of_images) + share * mean(of_places)

    def _picked(self, query: Tensor, key: Tensor, queue: Tensor) -> Tensor:
        scores = torch.stack([unit(query) @ row for row in (unit(key), *queue)]) / self.config.temperature
        return scores.logsumexp(dim=0) - scores[0]

    def after_update(self, batch: Batch, step: Step) -> None:
        """Keys enter the queues, and the teachers follow."""
        push(self.net.queue, units(self.keys))
        push(self.net.dense_queue, units(self.means))
        follow(self.net.teacher, (self.net.backbone, self.net.projector), self.config.momentum)
        follow(self.net.dense_teacher, (self.net.dense_projector,), self.config.momentum)


class CO2(Plain):
    """Wei et al. 2020, section 2; keys are normalised over the whole batch."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Each query picks its key, and its similarities to the other keys are those of its key."""
        first, second = two(batch)
        q, self.keys = units(self.embed(first)), units(self.net.teacher(second))
        terms = []
        for query, key in zip(q, self.keys, strict=True):
            own = torch.stack([query @ row for row in (key, *self.net.queue.keys)]) / self.config.temperature
            both = [
                log_softmax(torch.stack([row @ other for other in self.net.queue.keys]) / self._temperature())
                for row in (query, key)
            ]
            there = (both[1].exp() * (both[1] - both[0])).sum()
            back = (both[0].exp() * (both[0] - both[1])).sum()
            terms.append(-log_softmax(own)[0] + self.config.consistency * (there + back) / 2)
        return mean(terms)

    def _temperature(self) -> float:
        return self.config.consistency_temperature  # type: ignore[no-any-return]

    def after_update(self, batch: Batch, step: Step) -> None:
        """Keys enter the queue, and the teacher follows."""
        push(self.net.queue, self.keys)
        follow(self.net.teacher, (self.net.backbone, self.net.projector), self.config.momentum)


class DetCon(Plain):
    """Hénaff et al. 2021, eq. 3; which masks are drawn is raysl's, whose numbers have tests of their own."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Each drawn mask of a view picks itself in the other view."""
        net = self.net
        maps = self._maps(net.backbone, batch)
        boxes = batch.extras["global.box"].tolist()
        cells = torch.tensor([[self._cells(box, maps[0].shape[2]) for box in pair] for pair in boxes])
        masks = net._drawn(cells, batch)
        z = self._vectors(net.projector, maps, cells, masks)
        p = [net.predictor(view.flatten(0, 1)).view_as(view) for view in z]
        with torch.no_grad():
            backbone, projector = net.teacher.module
            targets = self._vectors(projector, self._maps(backbone, batch), cells, masks)
        first, second = masks.unbind(1)
        there = self._directed(p[0], targets[0], targets[1], first.tolist(), second.tolist())
        return there + self._directed(p[1], targets[1], targets[0], second.tolist(), first.tolist())

    def after_update(self, batch: Batch, step: Step) -> None:
        """The target follows."""
        share = cosine_course(step, self.config.momentum, self.config.final_momentum)
        follow(self.net.teacher, (self.net.backbone, self.net.projector), share)

    def _maps(self, backbone: Any, batch: Batch) -> list[Tensor]:
        return [backbone.stages(images, [self.net.stage])[self.net.stage] for images in two(batch)]

    def _cells(self, box: list[float], side: int) -> list[int]:
        """Of each place of a view, by the share of the image that lies above and left of its centre."""
        top, left, bottom, right, height, width = box
        shares = [(place + 0.5) / side for place in range(side)]
        rows = [int((top + (bottom - top) * share) * (self.config.grid / height)) for share in shares]
        columns = [int((left + (right - left) * share) * (self.config.grid / width)) for share in shares]
        return [row * self.config.grid + column for row in rows for column in columns]

    def _vectors(self, projector: Any, maps: list[Tensor], cells: Tensor, masks: Tensor) -> list[Tensor]:
        """Projections [B, M, D] of the mean features under each drawn mask, of both views."""
        found = []
        for view, values in enumerate(maps):
            images_of = zip(values.flatten(2), cells[:, view], masks[:, view], strict=True)
            under = [rows[:, cell == mask].mean(dim=1) for rows, cell, drawn in images_of for mask in drawn]
            found.append(projector(torch.stack(under)).unflatten(0, masks[:, view].shape))
        return found

    def _directed(
        self, p: Tensor, own: Tensor, other: Tensor, masks: list[list[int]], others: list[list[int]]
    ) -> Tensor:
        terms = []
        for n, row in enumerate(p):
            for vector, mask in zip(row, masks[n], strict=True):
                drawn = [(i, k, one) for i, row_of in enumerate(masks) for k, one in enumerate(row_of)]
                kept = [own[i, k] for i, k, one in drawn if i != n or one != mask]
                scores = units([*other.flatten(0, 1), *kept]) @ unit(vector) / self.config.temperature
                same = [k for k, one in enumerate(others[n]) if one == mask]
                if same:
                    cosines = units(other[n, same]) @ unit(vector) / self.config.temperature
                    terms.append((scores.logsumexp(dim=0) - mean(cosines)) / masks[n].count(mask))
        return torch.stack(terms).sum() / (len(p) * len(masks[0]))


class DirectCLR(Plain):
    """Jing et al. 2021, section 6, and the authors' code: each view picks the other among other views of all images,
    both ways; each view is normalised by itself."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of the first dimensions."""
        z = [units(self.net.backbone(view)[:, : self.config.dim]) for view in two(batch)]
        terms = []
        for one, other in ((0, 1), (1, 0)):
            for image, row in enumerate(z[one]):
                scores = torch.stack([row @ key for key in z[other]]) / self.config.temperature
                terms.append(-log_softmax(scores)[image])
        return mean(terms)


class MMCR(Plain):
    """Yerxa et al. 2023, eq. 2, and the slow teacher of their code, whose embeddings count half."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Minus the nuclear norm of the means of views, and a share of that of the views of each image."""
        num, views = batch.views["global"].shape[:2]
        z = units(self.embed(all_views(batch))).view(num, views, -1)
        centroids = [mean(rows) for rows in z]
        if self.config.momentum is not None:
            slow = units(self.net.teacher.module(all_views(batch)).detach()).view(num, views, -1)
            centroids = [(own + mean(rows)) / 2 for own, rows in zip(centroids, slow, strict=True)]
        local = mean(nuclear(rows) for rows in z) if self.config.local_weight else torch.zeros(())
        return self.config.local_weight * local - nuclear(torch.stack(centroids))

    def after_update(self, batch: Batch, step: Step) -> None:
        """The teacher follows."""
        if self.config.momentum is not None:
            follow(self.net.teacher, (self.net.backbone, self.net.projector), self.config.momentum)


def nuclear(rows: Tensor) -> Tensor:
    """Sum of the singular values of a matrix."""
    return torch.linalg.matrix_norm(rows, ord="nuc")  # type: ignore[no-any-return]


class FroSSL(Plain):
    """Skean et al. 2023, eq. 6."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Even spectra, and views near their mean."""
        z = [units(self.embed(view).T).T for view in batch.views["global"].unbind(1)]  # columns of length 1
        centre, total = mean(z), torch.zeros((), dtype=z[0].dtype)
        for view in z:
            outer = sum(torch.outer(row, row) for row in view)
            total = total + (outer / outer.trace()).square().sum().log()
            total = total + self.config.invariance * len(z) * (view - centre).square().sum() / len(view)
        return total


class EMPSSL(Plain):
    """Tong et al. 2023, eq. 1 to 3."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Patches near their mean, and a large coding rate of each."""
        num, patches = batch.views["global"].shape[:2]
        z = units(self.embed(all_views(batch))).view(num, patches, -1)
        width, rates = z.shape[2], []
        for patch in z.unbind(1):
            outer = sum(torch.outer(row, row) for row in patch)
            scaled = torch.eye(width, dtype=z.dtype) + width / (num * self.config.eps) * outer
            rates.append(torch.linalg.slogdet(scaled).logabsdet / 2)
        cosines = mean(unit(row) @ unit(mean(rows)) for rows in z for row in rows)
        return -mean(rates) - self.config.invariance * cosines


class VIbCReg(Plain):
    """Lee and Aune 2021, section 3, and solo-learn's expander, behind Huang et al. 2019, algorithm 1, which tests of
    its own look at."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Agreement, deviations and correlations, of one view after another."""
        config, z = self.config, [self._expanded(self.net.backbone(view)) for view in two(batch)]
        total = config.invariance * (z[0] - z[1]).square().mean()
        for view in z:
            num, width = view.shape
            rows = view - mean(view)
            deviations = (rows.square().sum(dim=0) / (num - 1) + config.eps).sqrt()
            total = total + config.variance * (config.target_std - deviations).clamp(min=0).mean()
            columns = units(rows.T)
            pairs = [columns[j] @ columns[k] for j in range(width) for k in range(width) if j != k]
            total = total + config.covariance * torch.stack(pairs).square().sum() / width**2
        return total

    def _expanded(self, h: Tensor) -> Tensor:
        first, first_norm, _, second, second_norm, _, third, whitening = self.net.expander
        for linear, norm in ((first, first_norm), (second, second_norm)):
            x = norm(h @ linear.weight.T)
            h = x * (1 + torch.erf(x / math.sqrt(2))) / 2
        return whitening(h @ third.weight.T)  # type: ignore[no-any-return]


class VICRegL(Plain):
    """Bardes et al. 2022, section 3, and the order and the numbers of matches of their code."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of images, and of the places of two views that are near in the image, or whose embeddings are."""
        net, config, views = self.net, self.config, []
        for images, boxes in zip(two(batch), batch.extras["global.box"].unbind(1), strict=True):
            f = net.backbone.stages(images, [net.stage])[net.stage]  # [B, C, h, w]
            rows = f.permute(0, 2, 3, 1)
            places = net.local_expander(rows.reshape(-1, f.shape[1])).view(len(f), -1, config.local_dim)
            centres = torch.stack([self._centres(box, *f.shape[2:]) for box in boxes])
            views.append((net.expander(f.mean(dim=(2, 3))), places, centres))
        total = config.alpha * self._vicreg(views[0][0], views[1][0])
        for first, second in ((0, 1), (1, 0)):
            for by in (1, 2):  # embeddings, centres
                for one, other, num in zip((first, second), (second, first), config.num_matches, strict=True):
                    ours, theirs = views[one], views[other]
                    num = ours[1].shape[1] if by == 1 and config.match_all_features else num
                    rows = zip(ours[1], theirs[1], ours[by], theirs[by], strict=True)
                    pairs = zip(*(self._best(*image, num) for image in rows), strict=True)
                    slots = [self._vicreg(*map(torch.stack, zip(*slot, strict=True))) for slot in pairs]
                    total = total + (1 - config.alpha) * mean(slots) / 4
        return total

    def _centres(self, box: Tensor, height: int, width: int) -> Tensor:
        top, left, bottom, right = box[:4].tolist()
        spots = [(y + 0.5, x + 0.5) for y in range(height) for x in range(width)]
        where = [(top + (bottom - top) * y / height, left + (right - left) * x / width) for y, x in spots]
        return torch.tensor(where, dtype=torch.float64)

    def _best(self, ours: Tensor, theirs: Tensor, here: Tensor, there: Tensor, num: int) -> list[tuple[Tensor, Tensor]]:
        """The places whose nearest one in the other view is nearest, with it, in their order."""
        found = []
        for place, spot in enumerate(here):
            away = (there - spot).detach().square().sum(dim=1).sqrt()
            found.append((float(away.min()), place, int(away.argmin())))
        return [(ours[one], theirs[other]) for one, other in sorted(pair[1:] for pair in sorted(found)[:num])]

    def _vicreg(self, first: Tensor, second: Tensor) -> Tensor:
        """Of pairs of rows [n, D]."""
        config = self.config
        total = config.invariance * (first - second).square().mean()
        for view in (first, second):
            rows = view - mean(view)
            c = rows.T @ rows / (len(rows) - 1)
            hinges = (config.target_std - (c.diagonal() + config.eps).sqrt()).clamp(min=0)
            others = c.square().sum() - c.diagonal().square().sum()
            total = total + (config.variance * hinges.mean() + config.covariance * others / len(c)) / 2
        return total


class TiCo(Plain):
    """Zhu et al. 2022, algorithm 1; a gradient flows through what the batch adds to the covariance."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Invariance and contrast."""
        first, second = two(batch)
        z, target = units(self.embed(first)), units(self.net.teacher.module(second).detach())
        added = mean(torch.outer(row, row) for row in z)
        covariance = self.config.beta * self.net.covariance + (1 - self.config.beta) * added
        self.moved = covariance.detach()
        pulled = mean(1 - one @ other for one, other in zip(z, target, strict=True))
        return pulled + self.config.rho * mean(row @ covariance @ row for row in z)

    def after_update(self, batch: Batch, step: Step) -> None:
        """Covariance and teacher."""
        self.net.covariance.copy_(self.moved)
        momentum = cosine_course(step, self.config.momentum, 1.0)
        follow(self.net.teacher, (self.net.backbone, self.net.projector), momentum)


class MoCoV3(Plain):
    """Chen, Xie and He 2021, algorithm 1."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of both directions, times 2T."""
        views = two(batch)
        queries = [self.net.predictor(self.embed(view)) for view in views]
        keys = [self.net.teacher.module(view).detach() for view in views]
        return self._directed(queries[0], keys[1]) + self._directed(queries[1], keys[0])

    def after_update(self, batch: Batch, step: Step) -> None:
        """The teacher follows."""
        momentum = cosine_course(step, self.config.momentum, self.config.momentum_end)
        follow(self.net.teacher, (self.net.backbone, self.net.projector), momentum)

    def _directed(self, q: Tensor, k: Tensor) -> Tensor:
        temperature = self.config.temperature
        own = class_loss(torch.arange(len(q)), [units(k) @ unit(row) / temperature for row in q])
        return 2 * temperature * own


class ReSSL(Plain):
    """Zheng et al. 2021, algorithm 1."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """The student's relations to the queue after the teacher's."""
        strong, keys = batch.views["global"], self.net.queue.keys
        z = units(self.embed(strong.flatten(0, 1)))
        self.newest = units(self.net.teacher.module(batch.views["weak"][:, 0]).detach())
        relations = [log_softmax(keys @ row / self.config.teacher_temperature).exp() for row in self.newest]
        told = [relation for relation in relations for _ in range(strong.shape[1])]
        return cross_entropy(told, [keys @ row / self.config.temperature for row in z])

    def after_update(self, batch: Batch, step: Step) -> None:
        """Teacher and queue."""
        follow(self.net.teacher, (self.net.backbone, self.net.projector), self.config.momentum)
        push(self.net.queue, self.newest)


class SupCon(Plain):
    """Khosla et al. 2020, eq. 2."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Sum over positives outside of the logarithm."""
        views = batch.views["global"]
        z = units(self.embed(views.flatten(0, 1)))
        labels = batch.label.repeat_interleave(views.shape[1])
        terms = []
        for anchor in range(len(z)):
            others = [row for row in range(len(z)) if row != anchor]
            shares = log_softmax(torch.stack([z[anchor] @ z[row] for row in others]) / self.config.temperature)
            alike = [place for place, row in enumerate(others) if labels[row] == labels[anchor]]
            terms.append(-mean(shares[place] for place in alike))
        return mean(terms)


class WMSE(Plain):
    """Ermolov et al. 2021, section 3, with inverses of whole covariances in place of triangular solutions."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Distances of views that are whitened in random parts."""
        h = [self.net.backbone(view) for view in two(batch)]
        v = self.net.projector(torch.stack(h, dim=1).flatten(0, 1)).unflatten(0, (-1, 2))  # [B, 2, D]
        draw = batch.shared("wmse.sub_batches")
        terms = []
        for _ in range(self.config.whitenings):
            order = torch.from_numpy(draw.permutation(len(v))[0])
            for part in v[order].tensor_split(max(1, len(v) // self.config.sub_batch)):
                first, second = (self._whitened(part[:, view]) for view in (0, 1))
                terms += [2 - 2 * unit(one) @ unit(other) for one, other in zip(first, second, strict=True)]
        return mean(terms)

    def _whitened(self, rows: Tensor) -> Tensor:
        centred = rows - rows.mean(dim=0)
        covariance = sum(torch.outer(row, row) for row in centred) / (len(rows) - 1)
        eye = torch.eye(rows.shape[1])
        covariance = (1 - self.config.eps) * covariance + self.config.eps * eye
        whitener = torch.linalg.inv(torch.linalg.cholesky(covariance))
        return torch.stack([whitener @ row for row in centred])


class NPID(Plain):
    """Wu et al. 2018, eq. 4 to 8; with other settings PIRL's estimate of the constant, or a cross entropy."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of one view."""
        self.z = self.embed(batch.views["global"][:, 0])
        rows = self._rows(batch, "npid.negatives")
        if step.index == 0:
            self._set_norm(self.z, rows)
        return self._compared(self.z, rows)

    def after_update(self, batch: Batch, step: Step) -> None:
        """The bank."""
        remember(self.net.bank.bank, batch.index, self.z.detach(), self.config.momentum)

    def _rows(self, batch: Batch, slot: str) -> Tensor:
        bank = self.net.bank.bank.clone()
        drawn = batch.random(slot).uniforms(self.config.num_negatives, 0.0, len(bank)).astype(np.int64)
        return torch.stack(
            [
                torch.stack([bank[own], *(bank[other] for other in others)])
                for own, others in zip(batch.index, drawn, strict=True)
            ]
        )  # [B, 1 + K, D]

    def _set_norm(self, z: Tensor, rows: Tensor) -> None:
        similar = torch.stack(
            [(near @ unit(row) / self.config.temperature).exp().mean() for row, near in zip(z, rows, strict=True)]
        )
        self.net.log_norm.fill_((len(self.net.bank.bank) * similar.mean()).log().item())

    def _compared(self, z: Tensor, rows: Tensor) -> Tensor:
        return mean(self._of_image(unit(row), near) for row, near in zip(z, rows, strict=True))

    def _of_image(self, z: Tensor, rows: Tensor) -> Tensor:
        logits = rows @ z / self.config.temperature
        if self.config.loss == "cross_entropy":
            return -log_softmax(logits)[0]
        noise = (len(logits) - 1) / len(self.net.bank.bank)
        if self.config.loss == "self_normalised":
            own = logits.exp() / (logits.exp() + logits[1:].exp().sum())
            return -own[0].log() - (1 - own[1:]).log().sum()
        likely = (logits - self.net.log_norm).exp()
        every = likely + noise + torch.finfo(torch.float32).eps  # as VISSL
        return -(likely[0] / every[0]).log() - (noise / every[1:]).log().sum()


class PIRL(NPID):
    """Misra and van der Maaten 2019, eq. 5."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of an image and of its tiles."""
        self.z = self.embed(batch.views["global"][:, 0])
        patches = batch.views["patches"]
        h = self.net.tile_projector(self.net.backbone(patches.flatten(0, 1))).unflatten(0, patches.shape[:2])
        tiles = self.net.tiles_projector(torch.stack([torch.cat(list(own)) for own in h]))
        tiles_rows, image_rows = self._rows(batch, "pirl.tiles"), self._rows(batch, "pirl.image")
        if step.index == 0:
            self._set_norm(tiles, tiles_rows)
        share = self.config.tiles_weight
        return share * self._compared(tiles, tiles_rows) + (1 - share) * self._compared(self.z, image_rows)


class Jigsaw(Plain):
    """Noroozi and Favaro 2016, section 3."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Which order the tiles are in."""
        tiles = batch.views["patches"]
        z = self.embed(tiles.flatten(0, 1)).unflatten(0, tiles.shape[:2])
        scores = self.net.classifier(torch.stack([torch.cat(list(own)) for own in z]))
        return class_loss(batch.extras["patches.permutation"][:, 0], scores)


class RotNet(Plain):
    """Gidaris et al. 2018, eq. 2."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Which way a view is turned."""
        scores = self.net.classifier(self.net.backbone(all_views(batch)))
        return class_loss(batch.extras["global.rotation"].flatten(), scores)


class Supervised(Plain):
    """Cross entropy with labels."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of one view."""
        assert not any((self.config.mixup, self.config.cutmix, self.config.heads))
        scores = self.net.classifier(self.net.backbone(all_views(batch)))
        num = scores.shape[1]
        codes = []
        for label in batch.label:
            code = torch.full((num,), self.config.label_smoothing / num)
            code[label] += 1 - self.config.label_smoothing
            codes.append(code)
        return cross_entropy(codes, scores)


class Clusters(Plain):
    """ClusterFit (Yan et al. 2019): clusters as classes. What is done before an epoch is raysl's, whose k-means has
    tests of its own: clusters, centroids, a new classifier, banks."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        self.net.load_state_dict(course.first)

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of all views."""
        clusters = self.net.assignments[batch.index].repeat_interleave(batch.views["global"].shape[1])
        return class_loss(clusters, self.net.classifier(self.net.backbone(all_views(batch))))


class DeepCluster(Clusters):
    """Caron et al. 2018, eq. 1: small clusters weigh as much as large ones; a new classifier without momentum each
    epoch."""

    def trained(self) -> list[Any]:
        """The classifier apart."""
        head = list(self.net.classifier.parameters())
        others = [parameter for parameter in self.net.backbone.parameters() if parameter.requires_grad]
        return [{"params": others}, {"params": head, "momentum": 0.0}]

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Weighted by the size of the cluster."""
        num_views = batch.views["global"].shape[1]
        scores = self.net.classifier(self.net.backbone(all_views(batch)))
        clusters = self.net.assignments[batch.index].repeat_interleave(num_views)
        held = [number for number, size in enumerate(self.net.sizes.tolist()) if size > 0]
        total = self.net.sizes.sum().item()
        weights = [total / (len(held) * self.net.sizes[cluster].item()) for cluster in clusters]
        return mean(
            -weight * log_softmax(row)[cluster] for weight, row, cluster in zip(weights, scores, clusters, strict=True)
        )


class DeepClusterV2(Clusters):
    """Caron et al. 2020, section 4.1 and appendix D: centroids of embeddings as prototypes."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Mean over heads and views."""
        h = by_size(self.net.backbone, sizes(batch))  # of V views, [B, D] each
        flat = self.net.projector(torch.stack(h, dim=1).flatten(0, 1))
        self.z = units(flat).unflatten(0, (len(batch), -1))  # [B, V, P]
        terms = []
        for head in range(len(self.config.clusters)):
            centroids = self.net.get_buffer(f"centroids_{head}")
            for image, views in zip(batch.index, self.z, strict=True):
                own = self.net.assignments[head, image]
                terms += [-log_softmax(centroids @ row / self.config.temperature)[own] for row in views]
        return mean(terms)

    def after_update(self, batch: Batch, step: Step) -> None:
        """The banks."""
        for bank, crop in zip(self.net.banks, self.config.bank_crops, strict=True):
            remember(bank.bank, batch.index, self.z[:, crop].detach(), 0.0)


class SwAVMomentum(Plain):
    """SwAV (Caron et al. 2020) whose assignments are those of a teacher."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Swapped predictions of each head."""
        config, groups, net = self.config, sizes(batch), self.net
        h = torch.stack(by_size(net.backbone, groups), dim=1)  # [B, V, D]
        z = units(net.projector(h.flatten(0, 1))).unflatten(0, h.shape[:2])
        net.teacher.train(not config.eval_from.is_over(step))
        large = torch.stack(by_size(net.teacher.module, groups[:1]), dim=1).detach()
        self.large = units(large.flatten(0, 1)).unflatten(0, large.shape[:2])  # [B, A, P]
        is_used = net.queue is not None and config.queue_from.is_over(step)
        is_full = net.queue is not None and int(net.queue.num_filled) == len(net.queue.keys)
        losses = []
        for own, told in zip(net.prototypes, net.teacher_prototypes.module, strict=True):
            pairs = []
            for crop in range(self.large.shape[1]):
                rows = self.large[:, crop]
                if is_used and (is_full or config.queue_start == "random"):
                    rows = torch.cat([rows, net.queue.keys[:, crop]])
                scores = (rows @ told.weight.T).detach()
                codes = balanced(scores, config.epsilon, config.sinkhorn_iters)[: len(batch)]
                if not config.hard_until.is_over(step):
                    codes = F.one_hot(codes.argmax(dim=1), codes.shape[1]).double()
                others = [view for view in range(z.shape[1]) if view != crop]
                pairs.append(
                    mean(cross_entropy(codes, z[:, view] @ own.weight.T / config.temperature) for view in others)
                )
            losses.append(mean(pairs))
        return mean(losses)

    def after_backward(self, step: Step) -> None:
        """Hold the prototypes for a while."""
        if not self.config.freeze_prototypes.is_over(step):
            for prototypes in self.net.prototypes:
                prototypes.weight.grad = None

    @torch.no_grad()
    def after_update(self, batch: Batch, step: Step) -> None:
        """Prototypes, queue, and the teacher with the running statistics of the network."""
        net = self.net
        for prototypes in net.prototypes:
            prototypes.weight.copy_(units(prototypes.weight))
        if net.queue is not None and self.config.queue_from.is_over(step):
            push(net.queue, self.large)
        follow(net.teacher, (net.backbone, net.projector), self.config.momentum)
        own = [buffer for module in (net.backbone, net.projector) for buffer in module.buffers()]
        for to, by in zip(net.teacher.buffers(), own, strict=True):
            to.copy_(by)
        follow(net.teacher_prototypes, net.prototypes, self.config.momentum)
        for prototypes in net.teacher_prototypes.module:
            prototypes.weight.copy_(units(prototypes.weight))


class Distill(Plain):
    """FitNets (Romero et al. 2015, eq. 3) of an untrained teacher's features, at mean 0 and variance 1."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Mean squared error."""
        assert (self.config.target, self.config.is_crossed) == ("features", False)
        images = all_views(batch)
        student = self.net.head(self.net.backbone(images))
        with torch.no_grad():
            told = self.net.teacher.eval()(images)
        columns = []
        for column in told.T:
            deviation = ((column - column.mean()).square().mean() + 1e-6).sqrt()
            columns.append((column - column.mean()) / deviation)
        return mean((one - other).square().mean() for one, other in zip(student.T, columns, strict=True))


class Colorization(Plain):
    """Zhang, Isola and Efros 2016, eq. 2 and 3; bins and their weights are raysl's, which have tests of their own."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        self.net.load_state_dict(course.first)

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of the colours at each place."""
        lightness, colours = self.net._lab(all_views(batch))  # [N, 3, H, W], [N, h, w, 2]
        maps = self.net.backbone.stages(lightness, [self.net.stage])[self.net.stage]
        scores = F.pixel_shuffle(self.net.classifier(maps), self.config.cells).permute(0, 2, 3, 1).flatten(0, 2)
        terms = []
        for colour, row in zip(colours.flatten(0, 2), scores, strict=True):
            squares = (self.net.bins.double() - colour).square().sum(dim=1)
            nearest = squares.argsort()[: self.config.neighbours]
            shares = (-squares[nearest] / (2 * self.config.sigma**2)).exp()
            told = (shares / shares.sum() * log_softmax(row)[nearest]).sum()
            terms.append(-self.net.class_weights[nearest[0]] * told)
        return mean(terms)


class SparK(Plain):
    """Tian et al. 2023, section 3, with a ResNet of basic blocks; its maps are rows of visible places."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Squared error of hidden squares, a square at a time."""
        images, masks = all_views(batch), batch.extras["global.mask"].flatten(0, 1)
        side = images.shape[-1] // masks.shape[-1]
        terms = []
        for image, mask, told in zip(images, masks, self._decoded(images, masks), strict=True):
            for row, column in mask.nonzero().tolist():
                at = slice(row * side, (row + 1) * side), slice(column * side, (column + 1) * side)
                pixels = image[:, *at]
                centred = pixels - pixels.mean()
                pixels = centred / (centred.square().sum() / (pixels.numel() - 1) + 1e-6).sqrt()
                terms.append((told[:, *at] - pixels).square().mean())
        return mean(terms)

    def _decoded(self, images: Tensor, masks: Tensor) -> Tensor:
        """Images [N, C, H, W] as the decoder draws them."""
        maps, x = self._maps(images, masks), torch.zeros((), dtype=images.dtype)
        for number, block in enumerate(self.net.decoder.blocks):
            if number < min(len(maps), self.config.num_maps):
                x = x + self._dense(maps[-1 - number], self.net.densify[number], len(images))
            x = block(x)
        return self.net.decoder.pixels(x)  # type: ignore[no-any-return]

    def _maps(self, images: Tensor, masks: Tensor) -> list["SparseMap"]:
        """Those that the decoder gets, the largest first."""
        network = self.net.backbone
        x = SparseMap.of_images(images, masks)
        x = x.convolved(network.conv1).normalised(network.bn1).rectified()
        maps = []
        for number in range(network.config.num_stages):
            for block in getattr(network, f"layer{number + 1}"):
                out = x.convolved(block.conv1).normalised(block.bn1).rectified()
                out = out.convolved(block.conv2).normalised(block.bn2)
                short = x
                if block.downsample is not None:
                    short = x.convolved(block.downsample[0]).normalised(block.downsample[1])
                x = replace(out, rows=out.rows + short.rows).rectified()
            maps.append(x)
        return maps

    def _dense(self, sparse: "SparseMap", layer: Any, num: int) -> Tensor:
        rows = sparse.normalised(layer.norm).rows
        side = sparse.cell * sparse.masks.shape[-1]
        table = [
            [
                [rows[sparse.at[n, y, x]] if (n, y, x) in sparse.at else layer.mask_token for x in range(side)]
                for y in range(side)
            ]
            for n in range(num)
        ]
        filled = torch.stack([torch.stack([torch.stack(row) for row in square]) for square in table])  # [N, H, W, C]
        return layer.project(filled.permute(0, 3, 1, 2))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class SparseMap:
    """A map that has values at visible places alone.

    Args:
        rows: values of the places [P, C].
        at: number of each place, by image, row and column.
        masks: hidden squares of the images, bool [N, h, w].
        cell: places along a side of a square.
    """

    rows: Tensor
    at: dict[tuple[int, int, int], int]
    masks: Tensor
    cell: int

    @classmethod
    def of_images(cls, images: Tensor, masks: Tensor) -> "SparseMap":
        """Their visible pixels."""
        cell = images.shape[-1] // masks.shape[-1]
        at = cls._places(masks, cell)
        return cls(torch.stack([images[n, :, y, x] for n, y, x in at]), at, masks, cell)

    @staticmethod
    def _places(masks: Tensor, cell: int) -> dict[tuple[int, int, int], int]:
        num, height, width = masks.shape
        every = [(n, y, x) for n in range(num) for y in range(height * cell) for x in range(width * cell)]
        seen = [(n, y, x) for n, y, x in every if not masks[n, y // cell, x // cell]]
        return {place: number for number, place in enumerate(seen)}

    def convolved(self, layer: Any) -> "SparseMap":
        """The sums over visible places around each visible one."""
        size, stride, pad = layer.kernel_size[0], layer.stride[0], layer.padding[0]
        cell = self.cell // stride
        at = self._places(self.masks, cell)
        rows = torch.cat([self.rows, self.rows.new_zeros(1, self.rows.shape[1])])
        around = [
            [
                self.at.get((n, y * stride + i - pad, x * stride + j - pad), len(self.rows))
                for i in range(size)
                for j in range(size)
            ]
            for n, y, x in at
        ]
        weight = layer.weight.flatten(2)  # [D, C, k*k]
        return replace(self, rows=torch.einsum("pkc,dck->pd", rows[torch.tensor(around)], weight), at=at, cell=cell)

    def normalised(self, layer: Any) -> "SparseMap":
        """The values at mean 0 and variance 1 over all visible places."""
        return replace(self, rows=layer(self.rows[:, :, None, None]).flatten(1))

    def rectified(self) -> "SparseMap":
        """The values above 0."""
        return replace(self, rows=self.rows.clamp(min=0))


CONVNETS: dict[str, tuple[Callable[[Course], Peer], tuple[str, ...]]] = {
    "nnclr": (NNCLR, ()),
    "nnbyol": (NNBYOL, ()),
    "nnsiam": (NNSiam, ("method.queue_size=32", "method.output_dim=16")),
    "all4one": (All4One, ("method.queue_size=32", "method.output_dim=16", "method.encoder_lr_scale=1")),
    "spark": (SparK, ("method.decoder_width=16",)),
    "spark-last": (SparK, ("method.decoder_width=16", "method.num_maps=1")),
    "ssl_ey": (SSLEY, ("method.dim=8",)),
    "densecl": (DenseCL, ("method.queue_size=32",)),
    "co2": (CO2, ("method.queue_size=32", "method.consistency=3", "method.consistency_temperature=0.3")),
    "detcon": (DetCon, ()),
    "directclr": (DirectCLR, ()),
    "mmcr": (MMCR, ()),
    "mmcr-slow": (MMCR, ("method.momentum=0.9", "method.local_weight=0.1")),
    "vicregl": (VICRegL, ("method.dim=8", "method.local_dim=6")),
    "vicregl-all": (VICRegL, ("method.dim=8", "method.local_dim=6", "method.match_all_features=true")),
    "vibcreg": (VIbCReg, ("method.dim=8", "method.num_groups=2")),
    "frossl": (FroSSL, ()),
    "emp_ssl": (EMPSSL, ()),
    "lejepa": (LeJEPA, ("method.num_slices=3", "method.num_points=5")),
    "visreg": (VISReg, ("method.num_slices=3", "method.scale=0.8", "method.shape=1.5", "method.centre=0.5")),
    "tico": (TiCo, ()),
    "moco_v3": (MoCoV3, ()),
    "ressl": (ReSSL, ()),
    "supcon": (SupCon, ()),
    "wmse": (WMSE, ("method.sub_batch=8", "method.output_dim=4")),
    "npid": (NPID, ("method.num_negatives=32",)),
    "npid-plain": (NPID, ("method.num_negatives=32", "method.loss=nce")),
    "npid_plus": (NPID, ("method.num_negatives=32",)),
    "pirl": (PIRL, ("method.num_negatives=32",)),
    "jigsaw": (Jigsaw, ()),
    "rotnet": (RotNet, ()),
    "supervised": (Supervised, ("method.mixup=0", "method.cutmix=0")),
    "clusterfit": (Clusters, ()),
    "deepcluster": (DeepCluster, ()),
    "deepcluster_v2": (DeepClusterV2, ()),
    "swav_momentum": (SwAVMomentum, ("method.queue_length=32", "method.queue_from=0st")),
    "distill": (Distill, ()),
    "colorization": (Colorization, ()),
}
"""By method, with what else a name tells behind a dash: what makes it, and further settings."""
