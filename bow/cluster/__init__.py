"""The processes of a training, one per device, on torch.distributed."""

from bow.cluster.launch import WorkerJob as WorkerJob
from bow.cluster.processes import Bucket as Bucket
from bow.cluster.processes import Processes as Processes
from bow.cluster.processes import Ranks as Ranks
from bow.cluster.rendezvous import is_leader as is_leader
from bow.cluster.rendezvous import is_member as is_member
from bow.cluster.rendezvous import job_name as job_name
from bow.cluster.rendezvous import join as join
from bow.cluster.rendezvous import start as start
from bow.cluster.rendezvous import was_restarted as was_restarted
from bow.cluster.world import ALONE as ALONE
from bow.cluster.world import DONE as DONE
from bow.cluster.world import PendingSum as PendingSum
from bow.cluster.world import TrialWorld as TrialWorld
from bow.cluster.world import World as World
