"""Upserts into Redis: a hash for each row, under a prefix.

==========================  =====================================================================
``<prefix><key>``           a hash: a field for each column that is not null, and ``_eos``, the
                            version that wrote it; ``_eos`` alone is a row that was deleted
``eos-upsert:<prefix>``     a hash: the mark of the target, its owner, the newest note, the tally
``eos-upsert:``             a set: the prefixes of all targets, of which none begins with another
==========================  =====================================================================

Several key columns are joined by ``:`` (their own ``%`` and ``:`` as ``%25`` and ``%3A``). Values
are text as Arrow writes them, times in UTC, and binary as it is. A script compares and writes
hundreds of rows, each in one step with its version, and only while this checkpoint is the owner.

Redis itself may lose writes that it had answered and not yet synced (``appendfsync``), or not yet
replicated at a failover. The tally tells such a loss, which is refused; it cannot be mended.
"""

from __future__ import annotations

import contextlib
import itertools
import shlex
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from airflow_eos.core.arguments import take_fields
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.participant import Note
from airflow_eos.errors import ConfigurationError, DeliveryError, Remedy, StoreError
from airflow_eos.kinds.sql.columns import refuse_cells, refuse_times
from airflow_eos.kinds.upsert.target import (
    TRYING,
    TargetOwner,
    flags_of,
    keys_of,
    lacking,
    left_by,
    not_ours,
    outranked,
    require_plain,
    values_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.kinds.upsert.target import RowSchema


def refuse_replica(info: Mapping[str, Any], prefix: str) -> None:
    """Refuse a cluster, which lacks keys, and a replica, which lags.

    Raises:
        ConfigurationError: it is a cluster.
        StoreError: it is a replica; after a failover it may be the master soon.
    """
    expected = f"expected one master that holds all keys of {prefix}."
    if info.get("cluster_enabled"):
        raise ConfigurationError(f"This Redis is a cluster: {expected}")
    if info.get("role") != "master":
        raise StoreError(
            f"This Redis is a {info.get('role')}: {expected}",
            Remedy(change="name the master, or wait until the failover is over", start=True),
        )


def refuse_server(info: Mapping[str, Any], prefix: str) -> None:
    """Refuse a server that forgets rows by itself.

    Args:
        info: the server's answer to ``INFO``.
        prefix: of the keys, for errors.

    Raises:
        ConfigurationError: with the setting, and what to do.
        StoreError: see :func:`refuse_replica`.
    """
    refuse_replica(info, prefix)
    policy = info.get("maxmemory_policy")
    if policy != "noeviction":
        raise ConfigurationError(
            f"This Redis has maxmemory-policy {policy}: it would forget rows, and their "
            "versions, when its memory is full. Expected noeviction (redis.conf, or CONFIG SET "
            "maxmemory-policy noeviction)."
        )
    if not info.get("aof_enabled"):
        raise ConfigurationError(
            "This Redis has appendonly no: when it ends, it forgets all that it acknowledged "
            "since its last snapshot, and nothing delivers that again. Expected appendonly yes "
            "(redis.conf, or CONFIG SET appendonly yes), best with appendfsync always."
        )


def life_of(info: Mapping[str, Any]) -> str:
    """Return an id that changes with each start of a server, and each replica that takes over."""
    return f"{info.get('run_id')} {info.get('master_replid')}"


def may_forget(fsync: str | None) -> str | None:
    """Return which writes a server with this ``appendfsync`` may still forget; None: no writes.

    Args:
        fsync: the setting; None where the server does not tell.
    """
    return {
        "always": None,
        "everysec": "the last second before a power cut",
        "no": "what the system had not written to disk before a power cut",
    }.get(fsync or "", "what it had acknowledged and not synced before a power cut")


# --- scripts --------------------------------------------------------------------------------------
# The Lua scripts that Redis runs, each in one step.
#
# Versions are digits of a fixed width, so that they compare as text as they do as numbers.


VERSION = "_eos"
"""The field of a row that holds its version."""

# KEYS: the target's hash, and the set of all targets. ARGV: the prefix, a new mark. Returns another
# prefix that begins with this one, or the reverse: rows of the two could have one name.
ENSURE_INSTANCE_ID = """
for _, other in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  local shorter = math.min(#other, #ARGV[1])
  if other ~= ARGV[1] and string.sub(other, 1, shorter) == string.sub(ARGV[1], 1, shorter) then
    return other
  end
end
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('HSETNX', KEYS[1], 'mark', ARGV[2])
return false
"""

# KEYS: the target's hash. ARGV: location, checkpoint. Where somebody has removed the whole hash,
# the epoch comes from the server's clock, to be greater than former ones; else from the last one.
CLAIM = """
if redis.call('HEXISTS', KEYS[1], 'owner_location') == 1 then return 0 end
local epoch = tonumber(redis.call('HGET', KEYS[1], 'last_epoch') or '0') + 1
if epoch == 1 then
  local time = redis.call('TIME')
  epoch = time[1] * 1000 + math.floor(time[2] / 1000)
end
epoch = string.format('%.0f', epoch)
redis.call('HSET', KEYS[1], 'last_epoch', epoch, 'owner_epoch', epoch,
  'owner_location', ARGV[1], 'owner_checkpoint', ARGV[2])
return 1
"""

# KEYS: the target's hash. ARGV: checkpoint, batch, attempt, the decision's nonce.
NOTE = """
if redis.call('HGET', KEYS[1], 'owner_checkpoint') ~= ARGV[1] then return 0 end
local batch = tonumber(redis.call('HGET', KEYS[1], 'note_batch') or '-1')
local attempt = tonumber(redis.call('HGET', KEYS[1], 'note_attempt') or '0')
local newer = tonumber(ARGV[2]) > batch
  or (tonumber(ARGV[2]) == batch and tonumber(ARGV[3]) >= attempt)
if newer then
  redis.call('HSET', KEYS[1], 'note_batch', ARGV[2], 'note_attempt', ARGV[3],
    'note_decision', ARGV[4])
end
return 1
"""

# KEYS: the target's hash. ARGV: the least number that the tally must have.
COUNT = """
local tally = tonumber(redis.call('HGET', KEYS[1], 'tally') or '0')
if tally < tonumber(ARGV[1]) then return -1 end
return redis.call('HINCRBY', KEYS[1], 'tally', 1)
"""

# KEYS: a row that is in no use. Runs all commands that rows need, and leaves nothing.
TRY = """
redis.call('PTTL', KEYS[1])
redis.call('HGET', KEYS[1], '_eos')
redis.call('HSET', KEYS[1], '_eos', '')
return redis.call('DEL', KEYS[1])
"""

# Returns the version of a row that stands, or else what keeps promised rows out of its place.
_STANDS = """
local function stands_at(key)
  if redis.call('PTTL', key) >= 0 then
    return nil, redis.error_reply('EXPIRY the row ' .. key .. ' has a time to live, and would be '
      .. 'forgotten with its version: PERSIST it')
  end
  local stands = redis.pcall('HGET', key, '_eos')
  if type(stands) == 'table' then
    return nil, redis.error_reply('OTHER the key ' .. key .. ' is no row of this target: RENAME it '
      .. 'or DEL it (' .. stands.err .. ')')
  end
  if stands and (#stands ~= 45 or string.find(stands, '%D')) then
    return nil, redis.error_reply('OTHER the row ' .. key .. ' has a version that is none of ours, '
      .. 'which tells not what is newer: HDEL its field _eos')
  end
  return stands
end
"""

# KEYS: the target's hash, then rows. Refuses what the script that writes them refuses; gives a
# greater epoch of another's row, negated.
LOOK = (
    _STANDS
    + """
local epoch = redis.call('HGET', KEYS[1], 'owner_epoch')
for i = 2, #KEYS do
  local stands, refused = stands_at(KEYS[i])
  if refused then return refused end
  local theirs = stands and tonumber(string.sub(stands, 1, 16))
  if theirs and epoch and theirs > tonumber(epoch) then return -theirs end
end
return 0
"""
)

# KEYS: the target's hash, then the rows. ARGV: checkpoint, order, number of columns n, their names;
# then for each row whether it is deleted ('1'), and n values: '+' and the value, or '-' for a null.
# Gives how many rows were older; -1 where another is the owner, and less: a greater epoch's.
APPLY = (
    _STANDS
    + """
if redis.call('HGET', KEYS[1], 'owner_checkpoint') ~= ARGV[1] then return -1 end
local epoch = redis.call('HGET', KEYS[1], 'owner_epoch')
local version = string.rep('0', 16 - #epoch) .. epoch .. ARGV[2]
local n = tonumber(ARGV[3])
local at = 4 + n
local older = 0
for i = 2, #KEYS do
  local stands, refused = stands_at(KEYS[i])
  if refused then return refused end
  local theirs = stands and tonumber(string.sub(stands, 1, 16))
  if theirs and theirs > tonumber(epoch) then return -theirs end
  if stands and stands > version then
    older = older + 1
  else
    local fields = {'_eos', version}
    if ARGV[at] == '0' then
      for column = 1, n do
        local value = ARGV[at + column]
        if string.byte(value) == 43 then
          fields[#fields + 1] = ARGV[3 + column]
          fields[#fields + 1] = string.sub(value, 2)
        end
      end
    end
    redis.call('DEL', KEYS[i])
    for first = 1, #fields, 1000 do  -- Lua unpacks some thousands at most
      redis.call('HSET', KEYS[i], unpack(fields, first, math.min(first + 999, #fields)))
    end
  end
  at = at + n + 1
end
return older
"""
)


# --- redis ----------------------------------------------------------------------------------------


log = Log(__name__)

_META = "eos-upsert:"
_ROWS = 500  # rows a script: no other client is served while it runs, about a millisecond
_VALUES = 500_000  # values a script, or one row: Redis takes a command of a million arguments
_LONGEST = (512 << 20) - 1024  # bytes of a value, less its sign: proto-max-bulk-len, by default
_SCRIPTS = 16  # scripts in a pipeline
_OWNED = ("owner_location", "owner_checkpoint", "owner_epoch")
_NOTED = ("note_batch", "note_attempt", "note_decision")


_ALLOWED = """
    client_name db health_check_interval password protocol retry_on_timeout socket_connect_timeout
    socket_keepalive socket_timeout ssl_ca_certs ssl_ca_data ssl_ca_path ssl_cert_reqs ssl_certfile
    ssl_check_hostname ssl_keyfile ssl_keyfile_password ssl_min_version username
"""
_OPTIONS = frozenset(_ALLOWED.split())
"""The settings of a URL that leave the answers as they are, which we read as bytes."""


def unreadable() -> ConfigurationError:
    """Return the error for a URL that nobody can read; it is not quoted."""
    return ConfigurationError(
        "The URL of Redis cannot be read: expected redis://[user:password@]host:port/db, "
        "rediss://… or unix://path, db a number, each part in percent-encoding."
    )


def refuse_options(url: str) -> None:
    """Refuse settings behind the ``?`` of a URL that are not known to do no harm.

    Raises:
        ConfigurationError: with their names; values may be secrets.
    """
    settings = url.partition("?")[2]
    if "@" in settings:  # the rest of a password, which is not quoted
        raise unreadable()
    is_tls = url.startswith("rediss:")  # the client raises a TypeError for its settings elsewhere
    taken = {each for each in _OPTIONS if is_tls or not each.startswith("ssl_")}
    unknown = sorted(parse_qs(settings, keep_blank_values=True).keys() - taken)
    if unknown:
        raise ConfigurationError(
            f"The URL of Redis has the settings {', '.join(unknown)}, which are not known here, or "
            f"change what is read and written: expected none but {', '.join(sorted(taken))}; "
            "ssl_… go with rediss:// alone."
        )


@dataclass(frozen=True)
class RedisUpsert:
    """An upsert target: a prefix of keys in one Redis that is no cluster.

    Attributes:
        url: such as ``redis://:password@host:6379/0`` or ``unix:///path``.
        prefix: of the keys, such as ``totals:``. No other target's prefix may begin with it.
    """

    url: str = field(repr=False)
    prefix: str

    def __post_init__(self) -> None:
        take_fields(self)
        refuse_options(self.url)
        ours = self.prefix.startswith(_META) or _META.startswith(self.prefix)
        if ours or not self.prefix.isprintable():
            raise ConfigurationError(
                f"prefix {self.prefix!r}: expected one for the keys of the rows, such as "
                f"'totals:', that does not begin with {_META!r}, nor is the beginning of that."
            )

    def refuse(self, columns: Mapping[str, str], key: tuple[str, ...], deleted: str | None) -> None:
        """Refuse columns whose values no hash can hold; ``columns``: names and Spark's types.

        Raises:
            ConfigurationError: with the columns, and what was expected.
        """
        del key, deleted
        require_plain(columns, "Redis", ours=VERSION, which="is the version of a row")

    def with_limits(self) -> RedisUpsert:
        """See :meth:`UpsertTarget.told`: nothing is asked, since a hash takes any plain value."""
        return self

    def refuse_rows(self, rows: pa.RecordBatch, key: Sequence[str]) -> None:
        """Refuse times that cannot be written as text, and values beyond what Redis takes."""
        del key
        refuse_times(rows, "text")
        refuse_cells(rows, _LONGEST, "Redis")

    def open(self, *, timeout_s: float) -> RedisTarget:
        """Return a connection to the target; nothing is connected yet."""
        return RedisTarget(self.url, self.prefix, timeout_s=timeout_s)


class RedisTarget:
    """See :class:`~airflow_eos.kinds.upsert.target.UpsertConnection`."""

    def __init__(self, url: str, prefix: str, *, timeout_s: float) -> None:
        try:
            import redis
        except ModuleNotFoundError as error:
            raise lacking("redis", "redis") from error
        self._prefix = prefix
        self._meta = f"{_META}{prefix}"
        self._errors = redis.RedisError
        self._not_told = redis.ResponseError
        self._full = redis.OutOfMemoryError
        try:
            parts = urlsplit(url)
            database = parts.path.strip("/")
            if parts.scheme != "unix" and database and not database.isdecimal():
                raise ValueError  # noqa: TRY301 - the client would take database 0
            self._client: Any = redis.Redis.from_url(
                url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s
            )
        except (ValueError, TypeError):
            raise unreadable() from None  # the cause may quote the password

    @property
    def address(self) -> Mapping[str, str]:
        """See :attr:`UpsertConnection.address`: the prefix."""
        return {"system": "redis", "target": self._prefix}

    @property
    def give_up(self) -> str:
        """See :attr:`UpsertConnection.give_up`; mark and last epoch stay."""
        return f"redis-cli HDEL {shlex.quote(self._meta)} {' '.join((*_OWNED, *_NOTED))}"

    def go_on(self, tally: int) -> str:
        """See :meth:`UpsertConnection.go_on`."""
        meta = shlex.quote(self._meta)
        return f"redis-cli HDEL {meta} {' '.join(_NOTED)} and redis-cli HSET {meta} tally {tally}"

    def check(self) -> None:
        """Refuse a cluster, a replica or a server that forgets rows; warn where it still may."""
        with self._asking("looking at the server"):
            refuse_server(self._client.info(), self._prefix)
            self._try_row()
            try:
                fsync = self._client.config_get("appendfsync").get("appendfsync")
            except self._not_told:  # a hosted server may have no CONFIG
                fsync = None
        if forgets := may_forget(fsync):
            log.warning("redis_may_forget", prefix=self._prefix, appendfsync=fsync, what=forgets)

    def _try_row(self) -> None:
        """Refuse a user that may not write rows, before any row is decided (ConfigurationError)."""
        try:
            self._client.register_script(TRY)(keys=[f"{self._prefix}{uuid.uuid4().hex}"])
        except self._full:
            raise
        except self._not_told as error:
            raise ConfigurationError(
                f"This Redis takes no row under {self._prefix!r} of this user: {error}.",
                Remedy(
                    change=f"ACL SETUSER … ~{self._prefix}* ~{_META}* +@all -@dangerous +info",
                    start=True,
                ),
            ) from error

    def ensure_instance_id(self) -> str:
        """See :meth:`UpsertConnection.ensure_instance_id`."""
        with self._asking("marking the target"):
            other = self._client.eval(
                ENSURE_INSTANCE_ID, 2, self._meta, _META, self._prefix, uuid.uuid4().hex
            )
        if other is not None:
            theirs = other.decode()
            raise ConfigurationError(
                f"The prefixes {self._prefix!r} and {theirs!r}, which has another target there, "
                "begin alike: a key of the one can be a key of the other, and the two would "
                "overwrite each other's rows. Nothing was written.",
                Remedy(change="give a prefix that begins otherwise", start=True),
                Remedy(
                    change=f"where nobody upserts to {theirs!r} any more, redis-cli SREM "
                    f"{_META} {shlex.quote(theirs)}",
                    start=True,
                ),
            )
        return self.instance_id() or ""

    def instance_id(self) -> str | None:
        """See :meth:`UpsertConnection.instance_id`."""
        return self._fields("mark")[0]

    def claim(self, location: str, checkpoint: str) -> None:
        """See :meth:`UpsertConnection.claim`."""
        with self._asking("claiming the target"):
            self._client.eval(CLAIM, 1, self._meta, location, checkpoint)

    def owner(self) -> TargetOwner | None:
        """See :meth:`UpsertConnection.owner`."""
        location, checkpoint, epoch = self._fields(*_OWNED)
        if location is None or checkpoint is None or epoch is None:
            return None
        return TargetOwner(location, checkpoint, int(epoch))

    def note(self, note: Note, checkpoint: str) -> None:
        """See :meth:`UpsertConnection.note`."""
        with self._asking("noting a decision"):
            noted = self._client.eval(
                NOTE, 1, self._meta, checkpoint, note.batch, note.attempt, note.decision
            )
        if not noted:
            raise self._not_ours()

    def newest(self) -> Note | None:
        """See :meth:`UpsertConnection.newest`."""
        batch, attempt, decision = self._fields(*_NOTED)
        if batch is None or attempt is None or decision is None:
            return None
        return Note(int(batch), int(attempt), decision, pipeline="")

    def life(self) -> str:
        """See :meth:`UpsertConnection.life`."""
        with self._asking("asking which server it is"):
            info = self._client.info()
        refuse_server(info, self._prefix)  # it may be set otherwise by now, as another one may be
        return life_of(info)

    def tally(self) -> int:
        """See :meth:`UpsertConnection.tally`; refuses a replica, which lags."""
        with self._asking("looking at the server"):
            refuse_replica(self._client.info("replication"), self._prefix)
        return int(self._fields("tally")[0] or 0)

    def count(self, known: int) -> int | None:
        """See :meth:`UpsertConnection.count`."""
        with self._asking("counting what was written"):
            number = int(self._client.eval(COUNT, 1, self._meta, known))
        return None if number < 0 else number

    def apply(self, rows: pa.Table, about: RowSchema, checkpoint: str, order: str) -> int:
        """See :meth:`UpsertConnection.apply`."""
        older = 0
        calls = self._calls(rows, about, checkpoint, order)
        while some := list(itertools.islice(calls, _SCRIPTS)):
            with self._asking("writing rows"):
                script = self._client.register_script(APPLY)
                with self._client.pipeline(transaction=False) as pipeline:
                    for keys, arguments in some:
                        script(keys=keys, args=arguments, client=pipeline)
                    answers = pipeline.execute()
            if -1 in answers:
                raise self._not_ours()
            self._require_greatest(min(answers))
            older += sum(answers)
        return older

    def tried(self, rows: pa.Table, about: RowSchema) -> None:
        """See :meth:`UpsertConnection.tried`: what stands is looked at, and one row is written.

        Redis rolls nothing back; memory that ends between this and the commit is waited for.
        """
        keys = keys_of(rows, about.key, self._prefix)
        with self._asking(TRYING):
            self._client.register_script(TRY)(keys=[f"{self._prefix}{uuid.uuid4().hex}"])
            script = self._client.register_script(LOOK)
            answers = [
                script(keys=[self._meta, *keys[at : at + _ROWS]])
                for at in range(0, len(keys), _ROWS)
            ]
        self._require_greatest(min(answers, default=0))

    def _require_greatest(self, answer: int) -> None:
        """Refuse a target where a script has found a greater epoch (OwnershipError)."""
        if answer < 0:
            above = f"redis-cli HSET {shlex.quote(self._meta)} last_epoch {-answer}"
            raise outranked(f"Prefix {self._prefix!r} in Redis", f"{self.give_up} and {above}")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _calls(
        self, rows: pa.Table, about: RowSchema, checkpoint: str, order: str
    ) -> Iterator[tuple[list[Any], list[Any]]]:
        """Yield keys and arguments of the script, for some hundred rows each; fewer wide ones."""
        columns = [name for name in rows.column_names if name != about.deleted]
        head = [checkpoint, order, len(columns), *columns]
        count = max(1, min(_ROWS, _VALUES // (len(columns) + 1)))
        for at in range(0, rows.num_rows, count):
            some = rows.slice(at, count)
            keys = keys_of(some, about.key, self._prefix)
            values = [flags_of(some, about.deleted), *(values_of(some[name]) for name in columns)]
            yield (
                [self._meta, *keys],
                [*head, *itertools.chain.from_iterable(zip(*values, strict=True))],
            )

    def _fields(self, *names: str) -> list[str | None]:
        with self._asking("reading whose the target is"):
            found = self._client.hmget(self._meta, names)
        return [None if each is None else bytes(each).decode() for each in found]

    def _not_ours(self) -> Exception:
        return not_ours(f"Prefix {self._prefix!r} in Redis", self.owner(), self.give_up)

    @contextlib.contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise DeliveryError(
                f"Redis refused or did not answer while {doing} ({self._prefix}…): "
                f"{type(error).__name__}: {error}. {left_by(doing)}"
            ) from error
