#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/prefix_cache.h"

namespace baton {
namespace {

constexpr int kPoolBlocks = 14;
constexpr std::size_t kMostHolders = 8;
constexpr int kOperations = 100'000;

// Texts of whole blocks. Each block is one of two, so that texts begin alike again and again; a
// text is named by its blocks: "abba".
struct Text {
  std::vector<TokenId> tokens;
  std::vector<PrefixHash> hashes;

  static Text Of(const std::string& name) {
    Text text;
    for (const char letter : name) {
      text.tokens.insert(text.tokens.end(), kBlockTokens,
                         TokenId(static_cast<std::uint32_t>(letter)));
    }
    text.hashes = HashBlocks(RootHash({}), text.tokens);
    return text;
  }
};

// What pool and cache should be, in maps. It says which blocks are pinned, which are kept and in
// which order they go; only which of the free blocks a lease gets is not its business.
class Model {
 public:
  int free() const { return kPoolBlocks - static_cast<int>(pins_.size()); }
  int kept() const {
    return static_cast<int>(std::ranges::count_if(
        cached_, [](const auto& entry) { return entry.second.idle_since > 0; }));
  }
  int pins(BlockId block) const {
    const auto it = pins_.find(block);
    return it == pins_.end() ? 0 : it->second;
  }
  int cached() const { return static_cast<int>(cached_.size()); }
  std::set<PrefixHash> CachedHashes() const {
    std::set<PrefixHash> hashes;
    for (const auto& [block, entry] : cached_) {
      hashes.insert(Text::Of(entry.text).hashes.back());
    }
    return hashes;
  }
  int given_up() const { return given_up_; }  // blocks, each with those behind it

  std::vector<BlockId> Find(const std::string& text) const {
    std::vector<BlockId> found;
    for (std::size_t length = 1; length <= text.size(); ++length) {
      const auto it = std::ranges::find_if(
          cached_, [&](const auto& entry) { return entry.second.text == text.substr(0, length); });
      if (it == cached_.end()) {
        break;
      }
      found.push_back(it->first);
    }
    return found;
  }

  // Gives up as many kept blocks as a lease of `count` needs.
  void MakeRoom(int count) {
    while (free() - kept() < count) {
      const auto oldest = std::ranges::min_element(cached_, {}, [](const auto& entry) {
        return entry.second.idle_since > 0 ? entry.second.idle_since : UINT64_MAX;
      });
      const std::string gone = oldest->second.text;
      ++given_up_;
      std::erase_if(cached_,
                    [&gone](const auto& entry) { return entry.second.text.starts_with(gone); });
    }
  }
  bool IsPlain(BlockId block) const { return pins(block) == 0 && !cached_.contains(block); }

  void Pin(BlockId block) {
    ++pins_[block];
    if (const auto it = cached_.find(block); it != cached_.end()) {
      it->second.idle_since = 0;
    }
  }
  void Unpin(BlockId block) {
    if (--pins_.at(block) > 0) {
      return;
    }
    pins_.erase(block);
    if (const auto it = cached_.find(block); it != cached_.end()) {
      it->second.idle_since = ++now_;
    }
  }

  // The block that a lease with `block` at the end of `text` holds after it was registered.
  BlockId Register(BlockId block, const std::string& text) {
    const std::vector<BlockId> found = Find(text);
    if (found.size() == text.size()) {
      Pin(found.back());
      Unpin(block);
      return found.back();
    }
    if (found.size() + 1 == text.size() && !cached_.contains(block)) {
      cached_[block] = {.text = text};
    }
    return block;
  }

 private:
  struct Cached {
    std::string text;              // all blocks up to this one
    std::uint64_t idle_since = 0;  // 0: pinned
  };

  std::map<BlockId, int> pins_;
  std::map<BlockId, Cached> cached_;
  std::uint64_t now_ = 0;
  int given_up_ = 0;
};

// A lease as a sequence or, with nothing to register, a transfer holds it.
struct Holder {
  std::string text;
  BlockLease lease;
  int registered = 0;
  bool registers = true;
};

// What a cache has said that it holds.
class HeldHashes final : public CacheObserver {
 public:
  void OnStored(const PrefixHash& hash) override { EXPECT_TRUE(held_.insert(hash).second); }
  void OnRemoved(const PrefixHash& hash) override { EXPECT_EQ(held_.erase(hash), 1u); }
  const std::set<PrefixHash>& held() const { return held_; }

 private:
  std::set<PrefixHash> held_;
};

class CacheModelTest : public testing::Test {
 protected:
  std::size_t Below(std::size_t count) { return random_() % count; }
  std::string RandomText() {
    std::string text(1 + Below(6), 'a');
    for (char& letter : text) {
      letter = Below(3) == 0 ? 'b' : 'a';
    }
    return text;
  }
  Holder& AnyHolder() { return holders_[Below(holders_.size())]; }

  // A sequence is admitted: what is known of its text is pinned, the rest is leased.
  void Admit() {
    Holder holder{.text = RandomText()};
    const Text text = Text::Of(holder.text);
    const std::vector<BlockId> known = cache_.Find(text.hashes, text.tokens);
    ASSERT_EQ(known, model_.Find(holder.text));
    holder.lease = pool_.Pin(known);
    std::ranges::for_each(known, [this](BlockId block) { model_.Pin(block); });
    found_ += static_cast<int>(known.size());
    holder.registered = static_cast<int>(known.size());
    const int missing = static_cast<int>(holder.text.size() - known.size());
    Extend(holder, missing);
    holders_.push_back(std::move(holder));
  }

  void Extend(Holder& holder, int count) {
    std::optional<BlockLease> more = pool_.Lease(count);
    ASSERT_EQ(more.has_value(), count <= model_.free());
    if (!more.has_value()) {
      ++refused_;
      return;
    }
    model_.MakeRoom(count);
    for (const BlockId block : more->blocks()) {
      ASSERT_TRUE(model_.IsPlain(block)) << block.value();
      model_.Pin(block);
    }
    holder.lease.Append(*std::move(more));
  }

  // The values of a sequence's next block are final.
  void RegisterNext(Holder& holder) {
    if (!holder.registers || holder.registered == holder.lease.size()) {
      return;
    }
    const auto index = static_cast<std::size_t>(holder.registered++);
    const Text text = Text::Of(holder.text);
    const BlockId before = holder.lease.blocks()[index];
    const BlockId after = model_.Register(before, holder.text.substr(0, index + 1));
    cache_.Register(holder.lease, static_cast<int>(index), text.hashes, text.tokens);
    ASSERT_EQ(holder.lease.blocks()[index], after);
    replaced_ += after != before ? 1 : 0;
  }

  void Truncate(Holder& holder, int count) {
    for (int i = holder.lease.size(); i-- > count;) {
      model_.Unpin(holder.lease.blocks()[static_cast<std::size_t>(i)]);
    }
    holder.lease.Truncate(count);
    holder.registered = std::min(holder.registered, holder.lease.size());
  }

  void Share(const Holder& holder) {
    Holder shared{.text = holder.text, .lease = holder.lease.Share(), .registers = false};
    std::ranges::for_each(shared.lease.blocks(), [this](BlockId block) { model_.Pin(block); });
    holders_.push_back(std::move(shared));
  }

  void Operate() {
    const std::size_t choice = Below(10);
    if (holders_.empty() || (choice < 2 && holders_.size() < kMostHolders)) {
      Admit();
    } else if (choice < 6) {
      RegisterNext(AnyHolder());
    } else if (choice == 6 && holders_.size() < kMostHolders) {
      Share(AnyHolder());
    } else if (choice == 7) {
      Holder& holder = AnyHolder();
      Truncate(holder, static_cast<int>(Below(static_cast<std::size_t>(holder.lease.size()) + 1)));
    } else {
      const std::size_t index = Below(holders_.size());
      Truncate(holders_[index], 0);
      holders_.erase(holders_.begin() + static_cast<std::ptrdiff_t>(index));
    }
  }

  void ExpectAsModelled() {
    ASSERT_TRUE(pool_.CheckInvariants().ok()) << pool_.CheckInvariants();
    ASSERT_TRUE(cache_.CheckInvariants().ok()) << cache_.CheckInvariants();
    ASSERT_EQ(pool_.free(), model_.free());
    ASSERT_EQ(pool_.kept(), model_.kept());
    ASSERT_EQ(cache_.size(), model_.cached());
    ASSERT_EQ(heard_.held(), model_.CachedHashes());
    for (std::uint32_t i = 0; i < kPoolBlocks; ++i) {
      ASSERT_EQ(pool_.IsPinned(BlockId(i)), model_.pins(BlockId(i)) > 0) << "block " << i;
    }
  }

  std::mt19937 random_;
  BlockPool pool_{kPoolBlocks};
  HeldHashes heard_;
  PrefixCache cache_{pool_, &heard_};
  Model model_;
  std::vector<Holder> holders_;
  int found_ = 0;     // blocks that were cached when a sequence came
  int refused_ = 0;   // leases
  int replaced_ = 0;  // blocks whose content another one held already
};

// T80: leases, pins, registrations and evictions at random, against maps.
TEST_F(CacheModelTest, PoolAndCacheDoAsTheMapsSay) {
  constexpr std::uint32_t kSeed = 4;
  random_.seed(kSeed);
  for (int operation = 0; operation < kOperations; ++operation) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, ", operation ", operation));
    ASSERT_NO_FATAL_FAILURE(Operate());
    ASSERT_NO_FATAL_FAILURE(ExpectAsModelled());
  }
  // Everything that can happen has happened often.
  std::printf("%d blocks found, %d replaced, %d given up; %d leases refused\n", found_, replaced_,
              model_.given_up(), refused_);
  for (const int count : {found_, replaced_, model_.given_up(), refused_}) {
    EXPECT_GT(count, kOperations / 1000);
  }

  while (!holders_.empty()) {
    Truncate(holders_.back(), 0);
    holders_.pop_back();
  }
  EXPECT_EQ(pool_.free(), kPoolBlocks);
  ExpectAsModelled();
}

}  // namespace
}  // namespace baton
