#include "frontend/calling_client.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "baton/v1/worker.grpc.pb.h"
#include "proto/grpc_runtime.h"
#include "proto/status_conversion.h"
#include "tests/frontend/test_certificates.h"

namespace baton {
namespace {

// Answers every call with who made it: the tenant as `version`, the traceparent as `model`.
class WhoAmI final : public v1::Admin::CallbackService {
 public:
  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context,
                                   const v1::StatusRequest*,
                                   v1::StatusResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const absl::StatusOr<Caller> caller = IdentifyCaller(*context);
    if (caller.ok()) {
      response->set_version(caller->tenant);
      response->set_model(caller->traceparent);
    }
    reactor->Finish(ToGrpcStatus(caller.status()));
    return reactor;
  }
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

class CallerTest : public testing::Test {
 protected:
  void Serve(const std::shared_ptr<grpc::ServerCredentials>& server_side,
             const std::shared_ptr<grpc::ChannelCredentials>& client_side) {
    KeepGrpcRunning();
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", server_side, &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = v1::Admin::NewStub(
        grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port), client_side, arguments));
  }

  absl::StatusOr<Caller> Ask(const Metadata& metadata) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    for (const auto& [key, value] : metadata) {
      context.AddMetadata(key, value);
    }
    v1::StatusResponse response;
    const absl::Status status = FromGrpcStatus(stub_->Status(&context, {}, &response));
    if (!status.ok()) {
      return status;
    }
    return Caller{.tenant = response.version(), .traceparent = response.model()};
  }

  WhoAmI service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Admin::Stub> stub_;
};

TEST_F(CallerTest, WithoutAnIdentityTheMetadataSaysWhoItIs) {
  Serve(grpc::InsecureServerCredentials(), grpc::InsecureChannelCredentials());
  EXPECT_EQ(Ask({})->tenant, "default");
  EXPECT_EQ(Ask({{"x-baton-tenant", "team-a"}})->tenant, "team-a");
  EXPECT_EQ(Ask({{"x-baton-tenant", std::string(128, 'a')}})->tenant, std::string(128, 'a'));

  const std::vector<Metadata> bad = {
      {{"x-baton-tenant", ""}},
      {{"x-baton-tenant", std::string(129, 'a')}},
      {{"x-baton-tenant", "two words"}},
      {{"x-baton-tenant", "a"}, {"x-baton-tenant", "b"}},
  };
  for (const Metadata& metadata : bad) {
    SCOPED_TRACE(metadata.front().second);
    const absl::Status status = Ask(metadata).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(ViolatedField(status), "x-baton-tenant");
  }
}

TEST_F(CallerTest, ACertificateSaysWhoItIsWhateverTheMetadataClaims) {
  const std::string folder = testing::TempDir() + "/caller_test_certificates";
  std::filesystem::create_directories(folder);
  WriteTestCertificates(folder);
  const TlsFiles files{.certificate = folder + "/cert.pem",
                       .key = folder + "/key.pem",
                       .authority = folder + "/ca.pem"};
  Serve(*MakeServerCredentials(files), *MakeChannelCredentials(files));

  const absl::StatusOr<Caller> plain = Ask({});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->tenant, "localhost") << "the certificate's first alternative name";
  EXPECT_EQ(Ask({{"x-baton-tenant", "somebody-else"}})->tenant, plain->tenant);
  EXPECT_EQ(Ask({{"x-baton-tenant", "not even valid"}})->tenant, plain->tenant);
}

TEST_F(CallerTest, OnlyAWellFormedTraceparentCounts) {
  Serve(grpc::InsecureServerCredentials(), grpc::InsecureChannelCredentials());
  const std::string good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  EXPECT_EQ(Ask({})->traceparent, "");
  EXPECT_EQ(Ask({{"traceparent", good}})->traceparent, good);
  EXPECT_EQ(Ask({{"traceparent", good}, {"traceparent", good}})->traceparent, "");
  EXPECT_EQ(Ask({{"traceparent", "00-nonsense"}})->traceparent, "");
}

}  // namespace
}  // namespace baton
