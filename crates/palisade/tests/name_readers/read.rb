# Reads bodies as Rack applications do (Rails and Sinatra read with it), and `JSON.parse`.
#
# One case a line on stdin, one array a line on stdout: every text that an application could
# take for the name. A body that is refused names nobody.
require "json"
require "rack"
require "stringio"

def leaves(value)
  case value
  when String then [value.dup.force_encoding("UTF-8").scrub]
  when Integer then [value.to_s]
  when Hash then value.values.flat_map { |item| leaves(item) }
  when Array then value.flat_map { |item| leaves(item) }
  else []
  end
end

def member(value, path)
  path.each { |name| value = value.is_a?(Hash) ? value[name] : nil }
  leaves(value)
end

def attempt
  yield
rescue StandardError
  []
end

def request(one, body)
  Rack::Request.new(
    "REQUEST_METHOD" => "POST", "PATH_INFO" => "/login", "SCRIPT_NAME" => "",
    "SERVER_NAME" => "app", "SERVER_PORT" => "80", "rack.url_scheme" => "http",
    "rack.errors" => $stderr, "QUERY_STRING" => one["query"], "CONTENT_TYPE" => one["type"],
    "CONTENT_LENGTH" => body.bytesize.to_s, "rack.input" => StringIO.new(body)
  )
end

# Rails wraps the members of a JSON body in one more of the controller's name, unless the body
# brings one (`ActionController::ParamsWrapper`).
def wrapped(value, path)
  value.is_a?(Hash) && value["session"] ? member(value["session"], path) : []
end

$stdin.each_line do |line|
  one = JSON.parse(line)
  body = one["body"].encode("ISO-8859-1").b
  found = attempt { member(request(one, body).GET, one["path"]) }
  if one["type"] == "application/json"
    found += attempt { member(JSON.parse(body.dup.force_encoding("UTF-8")), one["path"]) }
    found += attempt { wrapped(JSON.parse(body.dup.force_encoding("UTF-8")), one["path"]) }
  else
    found += attempt { member(request(one, body).POST, one["path"]) }
    found += attempt { member(request(one, body).params, one["path"]) }
  end
  puts JSON.generate(found)
end
