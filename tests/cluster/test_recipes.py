"""The recipes for Kubernetes: valid for the operator, consistent, closed to others, and with commands that exist."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import jsonschema
import pytest
import yaml
from dask.utils import parse_bytes
from distributed.cli.dask_scheduler import main as dask_scheduler
from distributed.cli.dask_worker import main as dask_worker

import bigkernel
from bigkernel import errors
from bigkernel.cli import main
from bigkernel.cluster.certificates import FILES, make_certificates, security_of
from bigkernel.cluster.cluster_file import read_file
from bigkernel.config import settings
from bigkernel.errors import ConfigError

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
OPERATOR = "dask-kubernetes==2026.3.0"  # whose wheel holds the schemas of DaskCluster and DaskJob
WHEEL_SHA256 = "5cf138e03cb1851063b82b74e9fd4679251238e3867fcae1e3682aada6410728"
TLS = "DASK_DISTRIBUTED__COMM__TLS__"

DOCUMENTS = {
    (path.stem, document["kind"], document["metadata"]["name"]): document
    for path in sorted((CLUSTER / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
}
DASK_CLUSTER = DOCUMENTS["cluster", "DaskCluster", "bigkernel"]["spec"]
DASK_JOB = DOCUMENTS["daskjob", "DaskJob", "bigkernel"]["spec"]
JOB = DOCUMENTS["job", "Job", "bigkernel-fit"]["spec"]
SHELL = DOCUMENTS["shell", "Pod", "shell"]["spec"]
PODS = {
    "scheduler": DASK_CLUSTER["scheduler"]["spec"],
    "worker": DASK_CLUSTER["worker"]["spec"],
    "job": JOB["template"]["spec"],
    "daskjob": DASK_JOB["job"]["spec"],
    "shell": SHELL,
}
# as the operator labels its pods, and as the other two say
LABELS = {
    "scheduler": {"dask.org/cluster-name": "bigkernel", "dask.org/component": "scheduler"},
    "worker": {"dask.org/cluster-name": "bigkernel", "dask.org/component": "worker"},
    "daskjob": {"dask.org/cluster-name": "bigkernel", "dask.org/component": "job-runner"},
    "job": JOB["template"]["metadata"]["labels"],
    "shell": DOCUMENTS["shell", "Pod", "shell"]["metadata"]["labels"],
}
SERVICES = yaml.safe_load((CLUSTER / "docker" / "compose.yaml").read_text(encoding="utf-8"))["services"]


def containers(pod):
    return [*pod.get("initContainers", ()), *pod["containers"]]


def environment(container):
    return {one["name"]: one["value"] for one in container.get("env", ())}


def option(arguments, name):
    (value,) = (argument.partition("=")[2] for argument in arguments if argument.startswith(f"{name}="))
    return value


# -- the schemas of the operator -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def schemas(request):
    """Schemas by kind; keys that they do not name are errors, although Kubernetes drops them silently."""
    place = request.config.cache.mkdir("recipes")
    wheel = place / "dask_kubernetes-2026.3.0-py3-none-any.whl"
    if not wheel.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--timeout=10", "--retries=1", "--dest", str(place), OPERATOR]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            pytest.skip(f"the schemas of the operator cannot be downloaded: {done.stderr.strip()[-200:]}")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == WHEEL_SHA256, f"{wheel} is not {OPERATOR}"
    result = {}
    with zipfile.ZipFile(wheel) as opened:
        for name in opened.namelist():
            if "/crds/" in name and name.endswith(".yaml"):
                definition = yaml.load(opened.read(name), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
                (version,) = definition["spec"]["versions"]
                result[definition["spec"]["names"]["kind"]] = strict(version["schema"]["openAPIV3Schema"])
    for schema in result.values():
        schema["properties"] |= {"apiVersion": {"const": "kubernetes.dask.org/v1"}, "kind": {}, "metadata": {}}
    return result


def strict(schema):
    """Return a schema that refuses keys that it does not name."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not result.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    return result


@pytest.mark.parametrize("name", [key for key in DOCUMENTS if key[1].startswith("Dask")], ids=str)
def test_the_operator_knows_every_key_of_its_documents(schemas, name):
    assert not list(jsonschema.Draft7Validator(schemas[name[1]]).iter_errors(DOCUMENTS[name]))


@pytest.mark.parametrize("name", ["job", "shell"])
def test_other_pods_match_the_same_schema(schemas, name):
    spec = schemas["DaskJob"]["properties"]["spec"]["properties"]["job"]["properties"]["spec"]
    assert not list(jsonschema.Draft7Validator(spec).iter_errors(PODS[name]))


# -- Kubernetes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PODS)
def test_a_pod_satisfies_the_restricted_policy_of_its_namespace(name):
    pod = PODS[name]
    labels = DOCUMENTS["base", "Namespace", "bigkernel"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("bigkernel", False)
    context = pod["securityContext"]
    assert context["runAsNonRoot"]
    assert min(context["runAsUser"], context["runAsGroup"]) >= 1000
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    volumes = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
    assert volumes <= {"secret", "emptyDir", "configMap", "persistentVolumeClaim"}
    for container in containers(pod):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert set(container["resources"]["limits"]) == {"cpu", "memory", "ephemeral-storage"}
        assert container["image"].endswith(f"/bigkernel:{bigkernel.__version__}")


@pytest.mark.parametrize("name", PODS)
def test_mounts_have_volumes_and_those_of_secrets_are_read_only(name):
    pod = PODS[name]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounted = {mount["name"] for container in containers(pod) for mount in container["volumeMounts"]}
    assert mounted == set(volumes)
    assert [volume["secret"]["secretName"] for volume in volumes.values() if "secret" in volume] == ["bigkernel-tls"]
    for container in containers(pod):
        for mount in container["volumeMounts"]:
            made = mount["name"] == "certificates" and container in pod["containers"]
            assert mount.get("readOnly", False) == (made or bool({"secret", "configMap"} & set(volumes[mount["name"]])))
    claims = [one["persistentVolumeClaim"]["claimName"] for one in volumes.values() if "persistentVolumeClaim" in one]
    data = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "data"]
    assert (claims, data) == (([], []) if name == "scheduler" else (["bigkernel-data"], ["/data"]))
    assert DOCUMENTS["base", "PersistentVolumeClaim", "bigkernel-data"]["spec"]["accessModes"] == ["ReadWriteMany"]


def policies_of(name):
    """Specifications of the network policies for a pod."""
    for key, document in DOCUMENTS.items():
        if key[1] == "NetworkPolicy" and document["spec"]["podSelector"]["matchLabels"].items() <= LABELS[name].items():
            yield document["spec"]


def allowed(rules, side, other):
    """Ports that rules open between two of our pods."""
    return {
        port["port"]
        for rule in rules
        for peer in rule[side]
        if set(peer) == {"podSelector"} and peer["podSelector"]["matchLabels"].items() <= LABELS[other].items()
        for port in rule["ports"]
    }


def ports(pod):
    return {port["name"]: port["containerPort"] for port in pod["containers"][0].get("ports", ())}


def test_the_cluster_is_reached_from_its_own_pods_at_the_ports_where_it_listens():
    scheduler, worker = ports(PODS["scheduler"]), ports(PODS["worker"])
    opened = {"scheduler": set(scheduler.values()), "worker": {worker["worker"], worker["nanny"]}}
    assert opened["scheduler"] == {8786, 8787}
    for name in PODS:
        policies = list(policies_of(name))
        assert any({"Ingress", "Egress"} <= set(policy["policyTypes"]) for policy in policies)
        incoming = [rule for policy in policies for rule in policy.get("ingress", ())]
        outgoing = [rule for policy in policies for rule in policy.get("egress", ())]
        assert all(set(peer) == {"podSelector"} for rule in incoming for peer in rule["from"])
        for other in PODS:
            assert allowed(incoming, "from", other) == opened.get(name, set())
            assert allowed(outgoing, "to", other) == opened["scheduler"] | opened["worker"]
        (beyond,) = (rule for rule in outgoing if any(set(peer) != {"podSelector"} for peer in rule["to"]))
        assert {port["port"] for port in beyond["ports"]} == {53}


def test_a_worker_fits_into_its_pod():
    (worker,) = PODS["worker"]["containers"]
    limit = parse_bytes(option(worker["args"], "--memory-limit"))
    pod = parse_bytes(worker["resources"]["limits"]["memory"])
    assert 0.8 * pod < limit < pod - 2**28  # the nanny needs some
    assert (option(worker["args"], "--nthreads"), option(worker["args"], "--nworkers")) == ("1", "1")
    assert environment(worker)["OPENBLAS_NUM_THREADS"] == "1"
    dask = yaml.safe_load((CLUSTER / "dask.yaml").read_text(encoding="utf-8"))
    scratch = next(volume["emptyDir"] for volume in PODS["worker"]["volumes"] if volume["name"] == "scratch")
    disk = worker["resources"]["limits"]["ephemeral-storage"]
    assert parse_bytes(dask["distributed"]["worker"]["memory"]["max-spill"]) < parse_bytes(scratch["sizeLimit"])
    assert parse_bytes(scratch["sizeLimit"]) < parse_bytes(disk)
    assert option(worker["args"], "--local-directory") == "/scratch"


def test_every_connection_is_encrypted_and_has_the_address_of_the_cluster_file(tmp_path):
    (tmp_path / "cluster.yaml").write_text(DOCUMENTS["base", "ConfigMap", "bigkernel-cluster"]["data"]["cluster.yaml"])
    file = read_file(tmp_path / "cluster.yaml")
    assert (file.kind, str(file.tls)) == ("address", "/run/certificates/own")
    worker, scheduler = PODS["worker"]["containers"][0], PODS["scheduler"]["containers"][0]
    assert file.address in worker["args"]
    assert environment(worker)["DASK_SCHEDULER_ADDRESS"] == file.address  # the default of the operator is tcp://
    for role, container in (("worker", worker), ("scheduler", scheduler)):
        expected = {
            "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true",
            f"{TLS}CA_FILE": "/certificates/ca.pem",
            f"{TLS}MIN_VERSION": "1.3",
            f"{TLS}{role.upper()}__CERT": "/certificates/cert.pem",
            f"{TLS}{role.upper()}__KEY": "/certificates/key.pem",
        }
        assert expected.items() <= environment(container).items()
    assert "tcp://" not in str(DOCUMENTS)


def test_the_init_container_copies_certificates_so_that_a_client_accepts_them(tmp_path):
    make_certificates(tmp_path / "made")
    secret, run = tmp_path / "secret", tmp_path / "run"
    secret.mkdir()
    run.mkdir(mode=0o2777)
    for name in FILES:
        (secret / name).write_bytes((tmp_path / "made" / name).read_bytes())
        (secret / name).chmod(0o440)
    with pytest.raises(ConfigError, match=r"key\.pem: accessible to other users"):
        security_of(secret)
    (init,) = PODS["job"]["initContainers"]
    command = init["command"] + init["args"]
    command = [word.replace("/secret", str(secret)).replace("/run/", f"{run}/") for word in command]
    subprocess.run(command, check=True, timeout=10)
    security_of(run / "certificates" / "own")


def test_the_daskjob_has_the_cluster_and_the_driver_of_the_other_documents():
    assert DASK_JOB["cluster"]["spec"] == DASK_CLUSTER
    (driver,), (other,) = PODS["daskjob"]["containers"], PODS["job"]["containers"]
    assert driver == other
    assert PODS["daskjob"]["initContainers"] == PODS["job"]["initContainers"] == PODS["shell"]["initContainers"]


def test_an_evicted_driver_is_replaced_and_permanent_errors_end_the_job():
    assert (PODS["job"]["restartPolicy"], PODS["daskjob"]["restartPolicy"]) == ("Never", "OnFailure")
    evicted, failed = JOB["podFailurePolicy"]["rules"]
    disruption = [{"type": "DisruptionTarget", "status": "True"}]
    assert (evicted["action"], evicted["onPodConditions"]) == ("Ignore", disruption)
    (driver,) = PODS["job"]["containers"]
    assert (failed["action"], failed["onExitCodes"]["containerName"]) == ("FailJob", driver["name"])
    temporary = {errors.StalledError.exit_code, errors.RunLockedError.exit_code, errors.BigKernelError.exit_code}
    known = {one.exit_code for one in vars(errors).values() if hasattr(one, "exit_code")}
    assert set(failed["onExitCodes"]["values"]) == {2, *known} - temporary
    for name in ("job", "daskjob"):
        assert PODS[name]["terminationGracePeriodSeconds"] > settings().grace_seconds + 15


@pytest.mark.parametrize("name", ["job", "daskjob", "compose"])
def test_the_driver_can_be_restarted_at_any_time(name):
    program, *arguments = SERVICES["driver"]["command"] if name == "compose" else PODS[name]["containers"][0]["args"]
    given = main.get_command(None, arguments[0]).make_context(arguments[0], arguments[1:]).params
    assert (program, given["resume"], given["overwrite"]) == ("bigkernel", True, True)
    assert all(place.startswith("/data/") for place in (given["corpus"], given["model"], given["run"]))


@pytest.mark.parametrize("kind, command", [("scheduler", dask_scheduler), ("worker", dask_worker)])
def test_dask_knows_every_option_of_its_commands(kind, command):
    for arguments in (PODS[kind]["containers"][0]["args"], SERVICES[kind]["command"]):
        assert arguments[:2] == ["dask", kind]
        assert command.make_context(kind, list(arguments[2:])).args == []
