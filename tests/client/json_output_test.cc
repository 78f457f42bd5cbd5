#include "client/json_output.h"

#include <gtest/gtest.h>

#include <chrono>

#include "baton/v1/completions.pb.h"
#include "baton/v1/worker.pb.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

TEST(JsonOutput, AResponseHasProtoNamesDefaultsEnumNamesAndSeconds) {
  v1::CompleteResponse response;
  response.set_id("one");
  v1::Choice& choice = *response.add_choices();
  choice.set_text("a\xFF\"\n");
  choice.add_token_ids(7);
  choice.set_finish_reason(v1::FINISH_REASON_LENGTH);
  response.mutable_usage()->set_prompt_tokens(3);
  response.mutable_timeline()->set_path(v1::PATH_COLOCATED);
  *response.mutable_timeline()->mutable_total() = ToProtoDuration(std::chrono::milliseconds(1500));

  EXPECT_EQ(
      DumpJson(ToJson(response)),
      R"({"id":"one","model":"","choices":[{"index":0,"text":"a)"
      "\xEF\xBF\xBD"
      R"(\"\n","token_ids":[7],"finish_reason":"FINISH_REASON_LENGTH","stop_match":""}],)"
      R"("usage":{"prompt_tokens":3,"completion_tokens":0,"cached_prompt_tokens":0},)"
      R"("timeline":{"path":"PATH_COLOCATED","reason":"ROUTE_REASON_UNSPECIFIED","transport":"",)"
      R"("prefill_worker":"","decode_worker":"","queue":0.0,"tokenize":0.0,"route":0.0,"prefill":0.0,)"
      R"("transfer":0.0,"exposed_transfer":0.0,"time_to_first_token":0.0,"decode":0.0,"total":1.5}})");
}

TEST(JsonOutput, NamesMadeOfBytesAreHexadecimal) {
  v1::Model model;
  model.set_model_fingerprint("\x01\xFF");

  EXPECT_EQ(ToJson(model)["model_fingerprint"], "01ff");
}

TEST(JsonOutput, MapsAreObjects) {
  v1::StatusResponse status;
  (*status.mutable_requests())["OK"] = 1ull << 60;
  status.add_workers()->set_alive(true);
  const auto json = ToJson(status);

  EXPECT_EQ(json["requests"]["OK"], 1ull << 60);
  EXPECT_EQ(json["workers"][0]["alive"], true);
  EXPECT_EQ(json["role"], "ROLE_UNSPECIFIED");
}

TEST(JsonOutput, AbsentOptionalFieldsAreLeftOut) {
  v1::CompleteRequest request;
  request.mutable_sampling()->set_top_k(0);
  (*request.mutable_sampling()->mutable_logit_bias())[5] = 1.5f;
  const auto json = ToJson(request);

  EXPECT_FALSE(json.contains("max_tokens"));
  EXPECT_FALSE(json.contains("text"));
  EXPECT_EQ(json["sampling"]["top_k"], 0);
  EXPECT_FALSE(json["sampling"].contains("temperature"));
  EXPECT_EQ(json["sampling"]["logit_bias"]["5"], 1.5);
}

}  // namespace
}  // namespace baton
