// Errors of callers, as exceptions that name the argument.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace octavo {

[[noreturn]] inline void refuse(const std::string& field, const std::string& why) {
    throw std::invalid_argument(field + ": " + why);
}

inline std::string at_index(const char* field, int64_t index, int64_t value) {
    return std::string(field) + "[" + std::to_string(index) + "] = " + std::to_string(value);
}

}  // namespace octavo
