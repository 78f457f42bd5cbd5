"""A plain gRPC client that knows of Baton only what the servers tell by reflection.

Arguments: the folder of the programs, and optionally a model (else a tiny random one is made).
Starts a router, a prefill worker and a decode worker on free ports.
"""

import os
import selectors
import subprocess
import sys
import tempfile
import time
import unittest

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase)
from grpc_status import rpc_status

READY_SECONDS = 90
STOP_SECONDS = 40
CALL_SECONDS = 60
COMPLETIONS = "baton.v1.Completions"
# Per role; each of them also serves health and reflection.
SERVICES = {
    "router": [COMPLETIONS],
    "decode": [COMPLETIONS, "baton.v1.DecodeWorker"],
    "prefill": ["baton.v1.PrefillWorker"],
}


class Server:
    """One server process; ready when constructed."""

    def __init__(self, programs: str, role: str, *flags: str):
        self._role = role
        self._log = tempfile.TemporaryFile()
        program = os.path.join(programs, f"baton-{role}")
        self._process = subprocess.Popen([program, *flags], stdin=subprocess.DEVNULL,
                                         stdout=subprocess.PIPE, stderr=self._log)
        try:
            self.doors = self._wait_until_ready()
        except Exception:
            self._process.kill()
            self._process.wait()
            raise

    def _wait_until_ready(self) -> dict[str, str]:
        deadline = time.monotonic() + READY_SECONDS
        output = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not output.endswith(b"\n"):
                if not selector.select(deadline - time.monotonic()):
                    raise TimeoutError(f"baton-{self._role} is not ready\n{self.log_tail()}")
                piece = os.read(self._process.stdout.fileno(), 4096)
                if not piece:
                    raise RuntimeError(f"baton-{self._role} ended\n{self.log_tail()}")
                output += piece
        word, role, *doors = output.decode().split()
        assert (word, role) == ("ready", self._role), output
        return dict(door.split("=", 1) for door in doors)

    def log_tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]

    def stop(self) -> int:
        """Asks the server to end and returns its exit status."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._process.stdout.close()
            self._log.close()


class ReflectedService:
    """Calls a service whose messages and methods are known from reflection alone."""

    def __init__(self, channel: grpc.Channel, name: str):
        self._channel = channel
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        self._service = pool.FindServiceByName(name)

    def request(self, method: str, **fields):
        descriptor = self._service.methods_by_name[method].input_type
        return message_factory.GetMessageClass(descriptor)(**fields)

    def enum_value(self, method: str, field: str, name: str) -> int:
        request = self._service.methods_by_name[method].input_type
        return request.fields_by_name[field].enum_type.values_by_name[name].number

    def call(self, method: str, request):
        descriptor = self._service.methods_by_name[method]
        streams = descriptor.server_streaming
        make = self._channel.unary_stream if streams else self._channel.unary_unary
        response = message_factory.GetMessageClass(descriptor.output_type)
        stub = make(f"/{self._service.full_name}/{method}",
                    request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=response.FromString)
        return stub(request, timeout=CALL_SECONDS)


class PythonClientTest(unittest.TestCase):
    programs = ""
    model = ""

    @classmethod
    def setUpClass(cls):
        model = ["--model", cls.model or cls.make_tiny_model()]
        cls.servers = []
        cls.addClassCleanup(cls.stop_servers)
        decode = cls.start("decode", *model, "--kv-pool-size", "256MiB")
        prefill = cls.start("prefill", *model, "--kv-pool-size", "256MiB")
        router = cls.start("router", *model, "--listen", "127.0.0.1:0",
                           "--decode", decode.doors["grpc"], "--prefill", prefill.doors["grpc"])
        cls.addresses = {"router": router.doors["grpc"], "decode": decode.doors["grpc"],
                         "prefill": prefill.doors["grpc"]}
        cls.channel = grpc.insecure_channel(cls.addresses["router"])
        cls.addClassCleanup(cls.channel.close)
        cls.completions = ReflectedService(cls.channel, COMPLETIONS)
        cls.wait_for_prefill_worker()

    @classmethod
    def make_tiny_model(cls) -> str:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        path = os.path.join(folder.name, "tiny.gguf")
        program = os.path.join(cls.programs, "baton-make-tiny-model")
        subprocess.run([program, "--gguf", path], check=True, stdout=subprocess.DEVNULL)
        return path

    @classmethod
    def wait_for_prefill_worker(cls):
        """A router is ready with its first decode worker; others may answer it a little later."""
        split = cls.completions.request("Complete", text=b"x", max_tokens=1,
                                        path=cls.path("PATH_DISAGGREGATED"))
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                cls.completions.call("Complete", split)
                return
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                    raise

    @classmethod
    def start(cls, role: str, *flags: str) -> Server:
        server = Server(cls.programs, role, *flags)
        cls.servers.append(server)
        return server

    @classmethod
    def stop_servers(cls):
        statuses = [server.stop() for server in reversed(cls.servers)]
        assert statuses == [0] * len(statuses), f"exit statuses after SIGTERM: {statuses}"

    def complete(self, method: str = "Complete", **fields):
        fields = {"sampling": {"temperature": 0.0}, "max_tokens": 12, **fields}
        return self.completions.call(method, self.completions.request(method, **fields))

    def expect_bad_field(self, field: str, **fields):
        with self.assertRaises(grpc.RpcError) as caught:
            self.complete(**fields)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT,
                         caught.exception.details())
        violations = []
        for detail in rpc_status.from_call(caught.exception).details:
            bad_request = error_details_pb2.BadRequest()
            if detail.Unpack(bad_request):
                violations += [violation.field for violation in bad_request.field_violations]
        self.assertIn(field, violations)

    @classmethod
    def path(cls, name: str) -> int:
        return cls.completions.enum_value("Complete", "path", name)

    def test_reflection_lists_the_services(self):
        for role, names in SERVICES.items():
            with self.subTest(role), grpc.insecure_channel(self.addresses[role]) as channel:
                listed = set(ProtoReflectionDescriptorDatabase(channel).get_services())
                self.assertLessEqual({*names, "grpc.health.v1.Health"}, listed)

    def test_health_of_the_server_and_of_each_service(self):
        def check(name: str):
            request = health_pb2.HealthCheckRequest(service=name)
            return health.Check(request, timeout=CALL_SECONDS).status

        for role, names in SERVICES.items():
            with self.subTest(role), grpc.insecure_channel(self.addresses[role]) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                for name in ["", *names]:
                    self.assertEqual(check(name), health_pb2.HealthCheckResponse.SERVING, name)
                with self.assertRaises(grpc.RpcError) as caught:
                    check("no.such.Service")
                self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_tokenize_and_detokenize_return_the_text(self):
        text = "digits after spaces:   42, é, 中"
        request = self.completions.request("Tokenize", text=text.encode())
        tokenized = self.completions.call("Tokenize", request)
        self.assertGreater(len(tokenized.ids), 5)
        request = self.completions.request("Detokenize", ids=list(tokenized.ids))
        self.assertEqual(self.completions.call("Detokenize", request).text.decode(), text)

    def test_lists_the_model(self):
        request = self.completions.request("ListModels")
        models = self.completions.call("ListModels", request).models
        self.assertEqual(len(models), 1)
        self.assertEqual(models[0].block_tokens, 16)
        self.assertEqual(len(models[0].model_fingerprint), 32)

    def test_both_paths_complete_with_equal_tokens(self):
        prompt = b"The capital of France is"
        results = {}
        for name in ("PATH_COLOCATED", "PATH_DISAGGREGATED"):
            response = self.complete(text=prompt, path=self.path(name))
            self.assertEqual(response.timeline.path, self.path(name))
            self.assertEqual(response.usage.completion_tokens, len(response.choices[0].token_ids))
            results[name] = list(response.choices[0].token_ids)
        self.assertEqual(results["PATH_COLOCATED"], results["PATH_DISAGGREGATED"])

    def test_a_stream_adds_up_to_the_unary_answer(self):
        whole = self.complete(text=b"Once upon a time")
        chunks = list(self.complete("StreamComplete", text=b"Once upon a time"))
        self.assertEqual(b"".join(chunk.choice.text for chunk in chunks), whole.choices[0].text)
        self.assertEqual([token for chunk in chunks for token in chunk.choice.token_ids],
                         list(whole.choices[0].token_ids))
        self.assertEqual([chunk.HasField("usage") for chunk in chunks],
                         [False] * (len(chunks) - 1) + [True])
        self.assertEqual(chunks[-1].usage, whole.usage)

    def test_bad_input_names_its_field(self):
        self.expect_bad_field("sampling.temperature", text=b"x", sampling={"temperature": -1.0})
        self.expect_bad_field("text", text=b"\xff\xfe")
        # The server goes on.
        self.assertEqual(self.complete(text=b"still here", max_tokens=1).usage.completion_tokens, 1)


if __name__ == "__main__":
    PythonClientTest.programs = sys.argv[1]
    if len(sys.argv) > 2:
        PythonClientTest.model = sys.argv[2]
    unittest.main(argv=sys.argv[:1], verbosity=2)
