"""`cluster.yaml` as Ray starts it, in a pretended AWS account that has what `aws-access.yaml` puts there."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError
from cfnlint.api import lint_all
from moto import mock_aws
from moto.core import enable_iam_authentication
from ray.autoscaler._private.aws.utils import client_cache, resource_cache
from ray.autoscaler._private.util import prepare_config
from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig

from raysl.cluster.spot import SpotFirst

ROOT = Path(__file__).parents[2]
STACK = ROOT / "configs" / "cluster" / "aws-access.yaml"
REGION = "us-west-2"
MY_ADDRESS = "203.0.113.7/32"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_SESSION_TOKEN": "testing"}
GROUPS = ("gpu", "cpu")


def forget_clients() -> None:
    """Ray keeps its connections to AWS, with the credentials that they were made with."""
    resource_cache.cache_clear()
    client_cache.cache_clear()


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An account with the stack and its bucket."""
    home = {"AWS_DEFAULT_REGION": REGION, "HOME": str(tmp_path_factory.mktemp("home"))}
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name, value in (KEYS | home).items():
            patch.setenv(name, value)
        forget_clients()
        given = {"Bucket": "images", "SshFrom": MY_ADDRESS}
        boto3.client("cloudformation").create_stack(  # as `aws cloudformation deploy` does
            StackName="raysl",
            TemplateBody=STACK.read_text(),
            Parameters=[{"ParameterKey": name, "ParameterValue": value} for name, value in given.items()],
            Capabilities=["CAPABILITY_NAMED_IAM"],
        )
        place = {"LocationConstraint": REGION}
        boto3.client("s3").create_bucket(Bucket=given["Bucket"], CreateBucketConfiguration=place)
        yield
    forget_clients()


def cluster_file() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "cluster.yaml").read_text()))


@pytest.fixture(scope="module")
def config(account: None) -> dict[str, Any]:
    """The configuration with which `ray up` starts a cluster, with all that Ray looks up or makes for it."""
    filled = SpotFirst.fillout_available_node_types_resources(prepare_config(cluster_file()))
    return dict(SpotFirst.bootstrap_config(filled))


@pytest.fixture
def provider(config: dict[str, Any]) -> Iterator[SpotFirst]:
    """What starts nodes; those that a test leaves are ended."""
    yield (provider := SpotFirst(config["provider"], config["cluster_name"]))
    provider.terminate_nodes(provider.non_terminated_nodes({}))
    forget_clients()


def node_config(config: dict[str, Any], group: str) -> dict[str, Any]:
    return dict(config["available_node_types"][group]["node_config"])


@contextmanager
def actions_of(*policies: str) -> Iterator[None]:
    """Have the rights of these policies of the stack alone inside: the pretended AWS checks them for every request.

    It compares actions and does not know what a request is about, so resources and conditions are left out here.
    """
    allowed = [{"Effect": "Allow", "Action": action, "Resource": "*"} for action in _actions(*policies)]
    iam, name = boto3.client("iam"), "-".join(policies)
    arn = iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    document = json.dumps({"Version": "2012-10-17", "Statement": allowed})
    iam.put_role_policy(RoleName=name, PolicyName=name, PolicyDocument=document)
    keys = boto3.client("sts").assume_role(RoleArn=arn, RoleSessionName="node")["Credentials"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", keys["AccessKeyId"])
        patch.setenv("AWS_SECRET_ACCESS_KEY", keys["SecretAccessKey"])
        patch.setenv("AWS_SESSION_TOKEN", keys["SessionToken"])
        _as_in_a_new_process()
        with enable_iam_authentication():
            yield
    _as_in_a_new_process()


def _as_in_a_new_process() -> None:
    boto3.setup_default_session()
    forget_clients()


def statements(policy: str) -> list[dict[str, Any]]:
    """What a policy of the stack allows, with lists of actions."""
    resources = boto3.client("cloudformation").describe_stack_resources(StackName="raysl")["StackResources"]
    (arn,) = [each["PhysicalResourceId"] for each in resources if each["LogicalResourceId"] == policy]
    document = boto3.client("iam").get_policy_version(PolicyArn=arn, VersionId="v1")["PolicyVersion"]["Document"]
    assert {each["Effect"] for each in document["Statement"]} == {"Allow"}
    return [each | {"Action": _as_list(each["Action"])} for each in document["Statement"]]


def _as_list(actions: str | list[str]) -> list[str]:
    return [actions] if isinstance(actions, str) else actions


def _actions(*policies: str) -> list[str]:
    return [action for policy in policies for each in statements(policy) for action in each["Action"]]


@pytest.mark.thorough
def test_ray_finds_everything_in_the_account_and_opens_nothing_itself(config: dict[str, Any]) -> None:
    groups = boto3.client("ec2").describe_security_groups()["SecurityGroups"]
    assert not any("Ray" in group["Description"] for group in groups)  # as that of a group of its own has
    used = {group for name in config["available_node_types"] for group in node_config(config, name)["SecurityGroupIds"]}
    (group,) = [group for group in groups if group["GroupId"] in used]
    ssh, inside = sorted(group["IpPermissions"], key=lambda rule: -len(rule["IpRanges"]))
    assert (ssh["FromPort"], ssh["ToPort"], [each["CidrIp"] for each in ssh["IpRanges"]]) == (22, 22, [MY_ADDRESS])
    assert ssh["UserIdGroupPairs"] == []
    assert inside["IpProtocol"] == "-1"
    assert [pair["GroupId"] for pair in inside["UserIdGroupPairs"]] == [group["GroupId"]]


@pytest.mark.thorough
@pytest.mark.usefixtures("account")
def test_where_the_stack_is_not_deployed_no_node_is_started() -> None:
    elsewhere = prepare_config(cluster_file())
    elsewhere["provider"]["region"] = "eu-west-1"
    with pytest.raises(ClientError, match="LaunchTemplate"):
        SpotFirst.bootstrap_config(elsewhere)


@pytest.mark.thorough
def test_nodes_have_the_rights_of_their_role_and_gpus_are_spot_instances(
    config: dict[str, Any], provider: SpotFirst
) -> None:
    started = {
        group: next(iter(provider.create_node(node_config(config, group), {"ray-node-type": group}, 1).values()))
        for group in config["available_node_types"]
    }
    profiles = {group: node.iam_instance_profile["Arn"].rpartition("/")[2] for group, node in started.items()}
    assert profiles == {"head": "raysl-head", "gpu": "raysl-worker", "cpu": "raysl-worker"}
    assert {group for group, node in started.items() if node.instance_lifecycle == "spot"} == {"gpu"}


@pytest.mark.thorough
@pytest.mark.usefixtures("provider")
def test_the_head_may_do_all_that_its_autoscaler_does(config: dict[str, Any]) -> None:
    with actions_of("NodePolicy", "HeadPolicy"):
        AutoscalingConfig(config, skip_content_hash=True)
        head = SpotFirst(config["provider"], config["cluster_name"])
        nodes = [
            node for group in GROUPS for node in head.create_node(node_config(config, group), {"ray-node-type": ""}, 1)
        ]
        assert sorted(head.non_terminated_nodes({})) == sorted(nodes)
        head.set_node_tags(nodes[0], {"ray-node-status": "setting-up"})
        head.terminate_node(nodes[0])
        head.terminate_nodes(nodes[1:])
        assert head.non_terminated_nodes({}) == []


@pytest.mark.thorough
@pytest.mark.usefixtures("provider")
def test_a_worker_may_use_the_bucket_and_start_no_nodes(config: dict[str, Any]) -> None:
    with actions_of("NodePolicy"):
        key = "runs/first/meta.json"
        s3 = boto3.client("s3")
        s3.put_object(Bucket="images", Key=key, Body=b"{}")
        assert [each["Key"] for each in s3.list_objects_v2(Bucket="images")["Contents"]] == [key]
        assert s3.get_object(Bucket="images", Key=key)["Body"].read() == b"{}"
        s3.delete_object(Bucket="images", Key=key)
        worker = SpotFirst(config["provider"], config["cluster_name"])
        with pytest.raises(ClientError, match="not authorized"):
            boto3.client("ec2").describe_instances()
        with pytest.raises(NodeLaunchException):
            worker.create_node(node_config(config, "cpu"), {"ray-node-type": ""}, 1)
        with pytest.raises(ClientError, match="AccessDenied"):
            boto3.client("iam").list_roles()


@pytest.mark.thorough
@pytest.mark.usefixtures("account")
def test_a_node_has_rights_to_one_bucket_and_one_image() -> None:
    images, inside, log_in, image = statements("NodePolicy")
    assert (images["Resource"], inside["Resource"]) == ("arn:aws:s3:::images", "arn:aws:s3:::images/*")
    assert log_in["Action"] == ["ecr:GetAuthorizationToken"]  # AWS has this for all registries or none
    assert image["Resource"].endswith(":repository/raysl")
    profiles = boto3.client("iam").list_instance_profiles()["InstanceProfiles"]
    names = {profile["InstanceProfileName"]: [role["RoleName"] for role in profile["Roles"]] for profile in profiles}
    assert names == {"raysl-head": ["raysl-head"], "raysl-worker": ["raysl-worker"]}
    roles = [
        yaml.load(STACK.read_text(), _AnyTag)["Resources"][f"{name}Role"]["Properties"] for name in ("Head", "Worker")
    ]
    policies = {role["RoleName"]: role["ManagedPolicyArns"] for role in roles}
    assert policies == {"raysl-head": ["NodePolicy", "HeadPolicy"], "raysl-worker": ["NodePolicy"]}


@pytest.mark.usefixtures("account")
def test_the_rights_of_the_head_end_at_its_own_cluster() -> None:
    by_action: dict[str, list[dict[str, Any]]] = {}
    for statement in statements("HeadPolicy"):
        for action in statement["Action"]:
            by_action.setdefault(action, []).append(statement)
    assert not any("*" in action for action in by_action)
    everywhere = {action for action, found in by_action.items() if any(each["Resource"] == "*" for each in found)}
    assert everywhere == {action for action in by_action if action.startswith("ec2:Describe")}
    (passing,) = by_action["iam:PassRole"]
    assert passing["Resource"] == boto3.client("iam").get_role(RoleName="raysl-worker")["Role"]["Arn"]
    # The pretended AWS does not read conditions: these are what keeps other instances of the account out.
    tag = {"StringEquals": {"aws:ResourceTag/ray-cluster-name": cluster_file()["cluster_name"]}}
    assert [each["Condition"] for each in by_action["ec2:TerminateInstances"]] == [tag]
    (instances,) = [each for each in by_action["ec2:RunInstances"] if "Condition" in each]
    assert instances["Resource"].endswith(":instance/*")
    image = node_config(cluster_file(), "head")["ImageId"].removeprefix("resolve:ssm:")
    (reading,) = by_action["ssm:GetParameters"]
    assert image.startswith(reading["Resource"].partition(":parameter")[2].removesuffix("*"))


@pytest.mark.slow
def test_aws_accepts_the_template_of_the_stack() -> None:
    def complaints(template: str) -> list[str]:
        return [match.rule.id for match in lint_all(template) if match.rule.severity != "informational"]

    assert complaints(STACK.read_text()) == []
    assert complaints(STACK.read_text().replace("LaunchTemplateName", "Name"))


@pytest.mark.parametrize("address", ["0.0.0.0/0", "203.0.113.7", "0.0.0.0/1"])
def test_ssh_is_not_opened_to_everybody(address: str) -> None:
    pattern = yaml.load(STACK.read_text(), _AnyTag)["Parameters"]["SshFrom"]["AllowedPattern"]
    assert not re.match(pattern, address)
    assert re.match(pattern, MY_ADDRESS)


class _AnyTag(yaml.SafeLoader):
    """YAML in which a function of CloudFormation is its argument."""


_AnyTag.add_multi_constructor("!", lambda loader, tag, node: node.value)


def answer_like_ec2(provider: SpotFirst, code: str, at_most: int = 0) -> None:
    """Make EC2 start `at_most` spot instances in a request, as it does while it has no more, or refuse with `code`."""

    def answer(params: dict[str, Any], **_: Any) -> tuple[AWSResponse, dict[str, Any]] | None:
        request = params["body"]
        if request.get("InstanceMarketOptions.MarketType") != "spot":
            return None
        request["MaxCount"] = min(at_most, request["MaxCount"])
        error = {"Error": {"Code": code, "Message": "no"}}
        return None if at_most else (AWSResponse("", 500, {}, None), error)

    provider.ec2_fail_fast.meta.client.meta.events.register("before-call.ec2.RunInstances", answer)


@pytest.mark.thorough
@pytest.mark.parametrize("spot", [0, 1])
def test_the_full_price_is_paid_for_what_aws_has_no_spot_instance_for(
    config: dict[str, Any], provider: SpotFirst, spot: int
) -> None:
    answer_like_ec2(provider, "InsufficientInstanceCapacity", at_most=spot)
    nodes = provider.create_node(node_config(config, "gpu"), {"ray-node-type": "gpu"}, spot + 1)
    assert sorted(node.instance_lifecycle or "full" for node in nodes.values()) == ["full"] + ["spot"] * spot
    assert sorted(provider.non_terminated_nodes({"ray-node-type": "gpu"})) == sorted(nodes)


@pytest.mark.thorough
def test_another_refusal_of_aws_stays_one(config: dict[str, Any], provider: SpotFirst) -> None:
    answer_like_ec2(provider, "VcpuLimitExceeded")
    with pytest.raises(NodeLaunchException) as refused:
        provider.create_node(node_config(config, "gpu"), {"ray-node-type": "gpu"}, 1)
    assert refused.value.category == "VcpuLimitExceeded"
    assert provider.non_terminated_nodes({}) == []
