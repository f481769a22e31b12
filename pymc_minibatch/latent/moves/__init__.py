"""Moves of a latent field and its hyperparameters, one file each.

In the coordinates (h, η) of :mod:`pymc_minibatch.latent.surrogate`, with η standard normal given h
under the surrogate:

- h moves with η held, so that the effects go where the new scales want them
  (:mod:`.noncentered`);
- the same given surrogate data of what rows read, so that predictors stay near where they are
  (:mod:`.surrogate_data`);
- single hyperparameters move with the few effects that follow each, many times by the surrogate for
  each decision (:mod:`.by_surrogate`);
- h moves with the predictors of rows held, which leaves the prior to decide, and no row to read
  (:mod:`.centered`): each of the two is good where the other is not (interweaving);
- one hyperparameter moves, and the levels of one factor follow it (:mod:`.collapsed`);
- the border of η moves, and carries along the effects of all groups (:mod:`.border`);
- it moves while the effects stay, if moves that carry these along are short (:mod:`.coefficients`);
- coefficients shift, and the levels below them shift back, so that rows read the same and the prior
  decides (:mod:`.shifted`);
- the levels of a factor move, each deciding from its own rows (:mod:`.levels`).

:mod:`.protocol` says what a move is, and :mod:`.scan` lists them in their order and makes them: it
alone decides, counts and tunes.

If the border is large, as with crossed factors, each new h asks for a factorization that takes
longer than all else. Then h mostly moves with predictors held, or with one factor following it, and
the border moves in the coordinates of an h close by, whose factor is kept (:mod:`.bank`): which
proposes a little worse, and is decided all the same.

The surrogate reads no row and is most of every log ratio; what rows add to it is left to what
decides (:mod:`.decisions`): a minibatch test that estimates their remainders, all rows, or the
bright rows of Firefly Monte Carlo. If it is the posterior itself, nothing is left to decide.

References
----------
Adler (1981), Over-relaxation method for the Monte Carlo evaluation of the partition function.
Christen and Fox (2005), Markov chain Monte Carlo using an approximation. Yu and Meng (2011), To
center or not to center: interweaving. Murray and Adams (2010), Slice sampling covariance
hyperparameters of latent Gaussian models. Liu and Sabatti (2000), Generalised Gibbs sampler and
multigrid Monte Carlo.
"""
