"""`RoutedRows`: how a router spreads the rows of tokens over experts, as far as an exchange of rows depends on it.

A token has a row for each of its experts. Where several of them are in one place (on one node), a single row is enough
on the way there. The mean number of places that a token visits follows from the numbers of experts, if each expert is
as likely as any other: a token draws its groups, and then its experts within them, without replacement.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import comb


@dataclass(frozen=True, slots=True)
class RoutedRows:
    """The experts that a token draws.

    Parameters
    ----------
    experts : number of experts
    chosen : experts of a token
    groups : equal groups of neighbouring experts, of which a token draws some first
    chosen_groups : groups of a token
    """

    experts: int
    chosen: int
    groups: int = 1
    chosen_groups: int = 1

    def distinct_share(self, experts: int) -> float:
        """Tokens with at least one of these neighbouring experts, for each of their rows for these experts.

        Where a token has 8 of 256 experts, the 32 of a node have one row of each token on average, from 66 % as many
        tokens. If a token draws 4 of 8 groups first, and each node has a group, these are 45 %:

        >>> [round(routed.distinct_share(32), 3) for routed in (RoutedRows(256, 8), RoutedRows(256, 8, 8, 4))]
        [0.662, 0.454]

        Parameters
        ----------
        experts : number of neighbouring experts
        """
        return float(self._visited(experts) / (self.chosen * Fraction(experts, self.experts)))

    def _visited(self, experts: int) -> Fraction:
        """Probability that a token has at least one of these experts."""
        of_group, drawn = self.experts // self.groups, self.chosen_groups
        if experts % of_group and of_group % experts:  # parts of groups: as if tokens drew no groups
            return RoutedRows(self.experts, self.chosen)._visited(experts)
        whole = max(1, experts // of_group)  # groups that these experts are in
        each = min(experts, of_group)  # of these experts in one of the groups
        missed = Fraction(0)
        for count in range(min(whole, drawn) + 1):
            ways = Fraction(comb(whole, count) * comb(self.groups - whole, drawn - count), comb(self.groups, drawn))
            missed += ways * Fraction(
                comb(drawn * of_group - count * each, self.chosen), comb(drawn * of_group, self.chosen)
            )
        return 1 - missed
