"""Who runs the cases: ours and the peers, one file each. A new peer is a file and a line here."""

from benchmarks.peers.base import Peer
from benchmarks.peers.brute import Brute
from benchmarks.peers.compiled import Compiled
from benchmarks.peers.eager import Eager
from benchmarks.peers.flex import Flex
from benchmarks.peers.keops import KeOps
from benchmarks.peers.keras import Keras
from benchmarks.peers.ours import Ours
from benchmarks.peers.sdpa import Sdpa
from benchmarks.peers.sklearn import ScikitLearn
from benchmarks.peers.statsmodels import Statsmodels

OURS = Ours()
RUNNERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (OURS, Eager(), Compiled(), Sdpa(), Flex(), KeOps(), Keras(), Statsmodels(), ScikitLearn(), Brute())
}
